"""The generations on the screen of ``kvtier status``: who uses each, and what it waits for."""

from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from kvtier.api.types import KVCacheTier
from kvtier.cli.active import Controller
from kvtier.cli.status_generations import Pool, document
from kvtier.cli.status_report import text
from kvtier.generation.identity import generation_id
from kvtier.generation.pods.read import read_pod
from kvtier.plan.pool import PoolPod

Body = dict[str, Any]
NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
SAMPLE = Path(__file__).parents[3] / "deploy/samples/smallest.yaml"
TIER: Body = yaml.safe_load(SAMPLE.read_text())
NAME = TIER["metadata"]["name"]
REVISION = TIER["spec"]["model"]["revision"]
CURRENT = generation_id(KVCacheTier.model_validate(TIER).spec)
OLD = "0123456789ab"


def tier(*generations: Body, engine_secret: str = CURRENT) -> Body:
    body = deepcopy(TIER)
    body["metadata"] |= {"namespace": "serving", "generation": 1}
    body["status"] = {
        "generations": list(generations),
        "engineSecret": f"{NAME}-engine-{engine_secret}",
    }
    return body


def generation(name: str, state: str, message: str = "", **more: str) -> Body:
    row = {"id": name, "state": state, "since": "2026-11-30T11:56:00Z", **more}
    return row | ({"message": message} if message else {})


def pod(
    name: str, *, mounts: str | None = CURRENT, ready: bool = True, revision: str = REVISION
) -> PoolPod:
    command = ["vllm", "serve", TIER["spec"]["model"]["name"], "--revision", revision]
    command += ["--tensor-parallel-size", "8"]
    manifest = {
        "metadata": {"name": name},
        "spec": {
            "containers": [
                {
                    "name": "vllm",
                    "command": command,
                    "volumeMounts": [{"name": "kvtier", "mountPath": "/kvtier"}],
                }
            ],
            "volumes": [{"name": "kvtier", "secret": {"secretName": f"{NAME}-engine-{mounts}"}}]
            if mounts
            else [],
        },
    }
    identity = read_pod(manifest, tier=NAME, config_maps={})
    return PoolPod(name=name, digest="", ready=ready, identity=identity)


def block(body: Body, *pods: PoolPod) -> list[str]:
    shown = text(body, now=NOW, runs=Controller(True), pool=Pool(pods)).splitlines()
    start = next(place for place, line in enumerate(shown) if line.startswith("  GENERATION"))
    return shown[start : shown.index("", start)]


LIVE = generation(CURRENT, "Live")
DRAINING = generation(OLD, "Draining", f"Fenced once Ready engines have used {CURRENT} for 1h.")


def test_each_generation_has_its_state_age_pods_and_next_step() -> None:
    pods = [
        pod("old-0", mounts=OLD, revision="b" * 40),
        *(pod(f"new-{n}", ready=n > 0) for n in range(5)),
    ]
    assert block(tier(DRAINING, LIVE), *pods) == [
        "  GENERATION    STATE     FOR    READY PODS",
        f"  {OLD}  Draining  4 min  1 of 1",
        "    Used by old-0.",
        f"    Fenced once Ready engines have used {CURRENT} for 1h.",
        f"    4 Ready pods on {CURRENT}: the clock runs.",
        f"  {CURRENT}  Live      4 min  4 of 5",
        "    Used by new-0, new-1, new-2 and 2 more.",
    ]


def test_a_drain_clock_without_a_ready_pod_on_the_new_one_stands_still() -> None:
    lines = block(tier(DRAINING, LIVE), pod("old-0", mounts=OLD), pod("new-0", ready=False))
    assert f"    No Ready pod mounts the Secret of {CURRENT}: the clock stands still." in lines


def test_pods_that_still_mount_what_has_no_access_are_told_to_miss() -> None:
    purged = generation(OLD, "Purged", "It goes once no pod mounts its Secret.", cause="Drained")
    still = "    2 pods still mount its Secret, and every look-up is a miss."
    lines = block(tier(purged, LIVE), pod("a", mounts=OLD), pod("b", mounts=OLD, ready=False))
    assert lines[1].split() == [OLD, "Purged", "Drained", "4", "min", "1", "of", "2"]
    assert still in lines
    assert still not in block(tier(purged, LIVE), pod("a"))


def test_a_pod_that_runs_another_identity_is_named_with_what_differs() -> None:
    poisoned = generation(CURRENT, "Contaminated", cause="Contaminated")
    lines = block(tier(poisoned), pod("good"), pod("stray", revision="b" * 40))
    told = " ".join(line.strip() for line in lines)
    assert (
        "2 pods still mount its Secret, and every look-up is a miss. Not what the spec names: "
        f"stray: revision is {'b' * 40}, not {REVISION}"
    ) in told


def test_of_a_generation_that_the_spec_does_not_name_pods_are_not_held_to_the_spec() -> None:
    lines = block(tier(DRAINING, LIVE), pod("old-0", mounts=OLD, revision="b" * 40), pod("new"))
    assert not any("Not what the spec names" in line for line in lines)


def test_pods_of_one_generation_that_differ_are_told_apart() -> None:
    pods = [pod("a", mounts=OLD, revision="v1"), pod("b", mounts=OLD, revision="v2")]
    assert "    Its pods differ in revision: v1 (a) and v2 (b)." in block(tier(DRAINING), *pods)


def test_pods_without_a_secret_have_a_row_of_their_own() -> None:
    lines = block(tier(LIVE), pod("bare", mounts=None, revision="b" * 40), pod("new"))
    assert lines[3].split() == ["no", "Secret", "-", "-", "1", "of", "1"]
    told = " ".join(line.strip() for line in lines[4:])
    assert told.startswith(f"Not what the spec names: bare: revision is {'b' * 40}, not {REVISION}")
    assert block(tier(LIVE), pod("bare", mounts=None))[-1] == "    bare."


def test_a_generation_that_was_made_for_drifted_engines_names_them() -> None:
    wanted = KVCacheTier.model_validate(TIER).spec
    model = wanted.model.model_copy(update={"revision": "b" * 40})
    theirs = generation_id(wanted.model_copy(update={"model": model}))
    lines = block(
        tier(LIVE, generation(theirs, "Pending")),
        pod("stray", mounts=None, revision="b" * 40),
        pod("other", mounts=None, revision="c" * 40),
    )
    assert "    Run without its Secret by stray." in lines


def test_without_the_right_to_list_pods_what_the_operator_wrote_is_shown() -> None:
    shown = text(tier(DRAINING, LIVE), now=NOW, runs=Controller(True), pool=Pool(None, "Why not."))
    assert "\n  Why not.\n\nFindings" in shown
    assert "READY PODS" not in shown
    assert f"Fenced once Ready engines have used {CURRENT} for 1h." in shown


def test_the_document_tells_of_each_pod_what_differs_and_what_cannot_be_read() -> None:
    (told,) = document(tier(LIVE), Pool((pod("stray", revision="b" * 40),))) or []
    assert told["generations"] == [CURRENT]
    assert told["differs"] == [
        {"field": field, "runs": "b" * 40, "declared": REVISION}
        for field in ("revision", "tokenizerRevision")
    ]
    assert document(tier(LIVE), Pool(None)) is None


def test_a_spec_that_is_refused_has_its_generations_all_the_same() -> None:
    body = tier(LIVE)
    body["spec"]["pool"] = {}
    assert block(body, pod("a"))[1].endswith("  1 of 1")
