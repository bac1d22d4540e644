"""The demo: a cluster, kvtier, a tier, and engines that use it. Run it by ``make demo``."""

import argparse
import hashlib
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from console import command, heading, output, say, step, table
from shown import next_steps, pays, plan, ranks
from target import CHECKOUT, DemoError, Target, existing, local

from kvtier.api.load import InvalidTier, load_file
from kvtier.api.types import KVCacheTier
from kvtier.generation.identity import generation_id
from kvtier.render.names import engine_secret_name

TIER_FILE = "deploy/samples/laptop.yaml"
POOL_FILE = "deploy/samples/prefill-pool.yaml"
STANDIN_FILE = "deploy/demo/standin.py"
STANDIN = "kvtier-standin"
GPU = "nvidia.com/gpu"
SECRET_SECONDS = 60.0
READY_SECONDS = 300.0
MEASURED_SECONDS = 120.0
POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Progress:
    """``tier`` and ``pool`` are lines for people."""

    tier: str
    tier_ready: bool
    pool: str
    pool_ready: bool


def main(arguments: list[str]) -> int:
    options = _options(arguments)
    try:
        if (options.context is None) != (options.image is None):
            raise DemoError(
                "give both CONTEXT=name and IMAGE=reference, or neither for a local cluster"
            )
        tier = load_file(TIER_FILE)
        target = _cluster(options)
        _install(target)
        _apply(target, tier)
        _wait(target, tier)
        _wait_measured(target, tier)
        _show(target, tier)
    except (DemoError, InvalidTier) as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo: interrupted; make demo goes on from here", file=sys.stderr)
        return 130
    return 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument("--context", help="kubectl context of an existing cluster")
    parser.add_argument("--image", help="kvtier's image, where that cluster can pull it")
    parser.add_argument("--offset", type=int, help="the local cluster's --offset")
    return parser.parse_args(arguments)


def _cluster(options: argparse.Namespace) -> Target:
    if options.context is not None:
        heading("1. The cluster")
        say(f"Your own, by the kubectl context {options.context}.")
        return existing(options.context, options.image)
    heading("1. A cluster on this machine")
    say(
        "Real Kubernetes: API server, scheduler, DNS, and three nodes with a kubelet and a "
        "containerd each. The first time it is built from source, about 30 min on two idle cores, "
        "and container images are made, a few minutes more; after that it starts in seconds."
    )
    return local(options.offset)


def _install(target: Target) -> None:
    heading("2. kvtier, by its Helm chart")
    values = [f"{name}={value}" for name, value in target.image_values().items()]
    arguments = [
        *("upgrade", "--install", "kvtier", "charts/kvtier"),
        *("--namespace", "kvtier-system", "--create-namespace", "--wait", "--timeout", "3m"),
        *(word for value in values for word in ("--set-string", value)),
    ]
    command("helm " + " ".join(arguments))
    started = time.monotonic()
    target.helm(*arguments)
    step(time.monotonic() - started, "the controller is ready")


def _apply(target: Target, tier: KVCacheTier) -> None:
    pool = tier.spec.pool
    heading(f"3. A tier of {pool.ranks} ranks, and two engines that use it")
    say(
        f"The tier asks for {pool.ranks} Valkeys of {tier.spec.store.memory_per_rank}, one for "
        "each rank of an engine. The engines are stand-ins: no GPU and no model, but the same "
        "keys, sizes and commands as LMCache, and only what the tier publishes for engines."
    )
    command(target.typed(f"apply -f {TIER_FILE}"))
    output(target.kubectl("apply", "-f", TIER_FILE))
    command(target.typed(f"apply -f {POOL_FILE}") + f"    # with {STANDIN_FILE} in a ConfigMap")
    output(target.kubectl("apply", "-f", "-", stdin=json.dumps(_standin_program())))
    pool_document = _pool(target, secret_uid=_engine_secret(target, tier))
    output(target.kubectl("apply", "-f", "-", stdin=json.dumps(pool_document)))


def _engine_secret(target: Target, tier: KVCacheTier) -> str:
    """UID of the Secret that the pool mounts, once the tier has published it."""
    name = engine_secret_name(tier.metadata.name, generation_id(tier.spec))
    deadline = time.monotonic() + SECRET_SECONDS
    while (secret := target.get("secret", name)) is None:
        if time.monotonic() > deadline:
            raise DemoError(
                f"Secret {name} does not appear; see "
                f"{target.typed(f'describe kvt/{tier.metadata.name}')}"
            )
        time.sleep(POLL_SECONDS)
    return str(secret["metadata"]["uid"])


def _standin_program() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": STANDIN},
        "data": {Path(STANDIN_FILE).name: (CHECKOUT / STANDIN_FILE).read_text()},
    }


def _pool(target: Target, *, secret_uid: str) -> dict[str, Any]:
    """The sample, with this cluster's image, and without GPUs where no node has any.

    Engines read the Secret when they start: a tier that was made again has new tokens, and its
    engines must start again.
    """
    pool: dict[str, Any] = yaml.safe_load((CHECKOUT / POOL_FILE).read_text())
    template = pool["spec"]["template"]
    program = hashlib.sha256((CHECKOUT / STANDIN_FILE).read_bytes()).hexdigest()
    template["metadata"]["annotations"] = {"engine-secret": secret_uid, "program": program}
    container = template["spec"]["containers"][0]
    container["image"] = target.image
    nodes = target.get("nodes")["items"]
    if not any(int(node["status"]["allocatable"].get(GPU, "0")) for node in nodes):
        say(f"No node of this cluster offers {GPU}: the stand-ins do without.")
        del container["resources"]["limits"][GPU]
    return pool


def _wait(target: Target, tier: KVCacheTier) -> None:
    heading("4. Until the tier serves and the engines have checked it")
    started = time.monotonic()
    said: set[str] = set()
    while True:
        now = _progress(target, tier)
        elapsed = time.monotonic() - started
        for line in (now.tier, now.pool):
            if line not in said:
                said.add(line)
                step(elapsed, line)
        if now.tier_ready and now.pool_ready:
            return
        if elapsed > READY_SECONDS:
            where = f"kvt/{tier.metadata.name}" if not now.tier_ready else "pods -l app=prefill"
            problem = now.tier if not now.tier_ready else now.pool
            raise DemoError(
                f"not ready after {elapsed:.0f} s ({problem}); see "
                f"{target.typed(f'describe {where}')}"
            )
        time.sleep(POLL_SECONDS)


def _wait_measured(target: Target, tier: KVCacheTier) -> None:
    """Until the link is probed; without a figure the demo goes on, and says so."""
    heading("5. Until kvtier has measured the link from where the engines are")
    command(target.typed(f"get job,pod -l kvtier.dev/probe={tier.metadata.name}"))
    started = time.monotonic()
    while (elapsed := time.monotonic() - started) < MEASURED_SECONDS:
        live = target.get("kvt", tier.metadata.name) or {}
        measured = live.get("status", {}).get("measured", {})
        if measured.get("evidence") == "Probed":
            rate = measured["bytesPerSecond"] * 8 / 1e9
            step(elapsed, f"{rate:.2g} Gb/s, measured from {measured['node']}")
            return
        time.sleep(POLL_SECONDS)
    step(elapsed, "no figure yet: the tier's events say why, and kvtier goes on trying")


def _progress(target: Target, tier: KVCacheTier) -> Progress:
    live = target.get("kvt", tier.metadata.name)
    if live is None:
        raise DemoError(f"tier {tier.metadata.name} was deleted while the demo waited for it")
    conditions = {item["type"]: item for item in live.get("status", {}).get("conditions", [])}
    ready = conditions.get("Ready", {"status": "Unknown", "message": "the controller's turn"})
    current = live.get("status", {}).get("observedGeneration") == live["metadata"]["generation"]
    deployment = target.get("deployment", "prefill") or {}
    status = deployment.get("status", {})
    settled = status.get("observedGeneration") == deployment.get("metadata", {}).get("generation")
    replicas = deployment.get("spec", {}).get("replicas", 0)
    checked = status.get("readyReplicas", 0)
    started = settled and status.get("updatedReplicas") == replicas == status.get("replicas")
    pool = f"{checked} of {replicas} have checked every rank" if started else "starting"
    return Progress(
        tier=f"tier: {ready['message']}",
        tier_ready=current and ready["status"] == "True",
        pool=f"engines: {pool}",
        pool_ready=started and checked == replicas,
    )


def _show(target: Target, tier: KVCacheTier) -> None:
    name = tier.metadata.name
    heading("6. What there is now")
    command(target.typed("get kvt -o wide"))
    output(target.kubectl("get", "kvt", "-o", "wide"))
    status = target.get("kvt", name)["status"]
    print()
    say("The ranks. Losing one loses the tier, so each is placed and repaired by itself:")
    table(ranks(target, tier, status))

    heading("Does it pay?")
    pays(tier, status, plan(TIER_FILE))
    command(f".venv/bin/kvtier plan -f {TIER_FILE}    # the same figures without a cluster")

    heading("What the engines say")
    _show_engines(target)

    heading("What the controller told about the tier")
    command(target.typed(f"events --for kvcachetier/{name}"))
    output(target.kubectl("events", f"--for=kvcachetier/{name}"))

    heading("What to try next")
    next_steps(target, tier)


def _show_engines(target: Target) -> None:
    pods = target.get("pods", "-l", "app=prefill")["items"]
    for pod in pods:
        if "deletionTimestamp" in pod["metadata"]:
            continue
        name = pod["metadata"]["name"]
        first = target.kubectl("logs", name, "--limit-bytes=20000").splitlines()
        command(target.typed(f"logs {name}"))
        output("\n".join(line for line in first if line.startswith("rank ")))
        newest = target.kubectl("logs", name, "--tail=1")
        if newest.startswith("look-up"):
            output(newest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
