"""What the demo shows of a tier: its ranks, whether it pays, and what to try next."""

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from console import command, quote, say, table
from target import CHECKOUT, LOCAL_CLUSTER, LOCAL_NAME, DemoError, Target

from kvtier.api.types import KVCacheTier
from kvtier.breakeven.words import gigabits, seconds, size
from kvtier.render.memory import held_tokens

SHOWN_LENGTHS = (1024, 4096, 16384, 65536)


def ranks(target: Target, tier: KVCacheTier, status: Mapping[str, Any]) -> Iterator[list[str]]:
    """Rows of a table: one for each rank."""
    yield ["RANK", "POD", "READY", "NODE", "ADDRESS FOR ENGINES"]
    for state in status["rankStates"]:
        service = f"{tier.metadata.name}-r{state['rank']}"
        yield [
            str(state["rank"]),
            f"{service}-0",
            "yes" if state["ready"] else "no",
            state.get("node", "-"),
            f"{service}.{target.namespace}.svc:6379",
        ]


def plan(file: str) -> dict[str, Any]:
    """What ``kvtier plan`` says of a file. Any verdict is an answer; bad input is not."""
    done = subprocess.run(
        [Path(sys.executable).with_name("kvtier"), "plan", "-f", file, "-o", "json"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    if not done.stdout:
        raise DemoError(f"kvtier plan: {done.stderr.strip()}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def pays(tier: KVCacheTier, status: Mapping[str, Any], planned: Mapping[str, Any]) -> None:
    """The break-even lines of a tier's status, and what the same figures say offline."""
    figures = status["breakEven"]
    earns = next(each for each in status["conditions"] if each["type"] == "EarningItsKeep")
    say(f"The verdict is {status['verdict']}, by what was measured; the file's figures give none:")
    quote(earns["message"])
    say(f"If the links did what the file declares, it would be {planned['verdict']}:")
    quote(planned["message"])
    print()
    rows = [
        ["KV of one token", f"{size(figures['bytesPerToken'])} stored and moved"],
        [
            "KV of one chunk",
            f"{size(figures['chunkBytes'])} ({tier.spec.pool.chunk_tokens} tokens)",
        ],
        ["break-even", f"{gigabits(figures['bytesPerSecond'])}: up to it no hit is worth fetching"],
    ]
    if "minimumHitTokens" in figures:
        rows.append(["minimum hit", f"{figures['minimumHitTokens']:,} tokens"])
    table(rows)
    print()
    table(
        [
            ["TOKENS OF THE HIT", "RECOMPUTE", "FETCH", "FASTER"],
            *_lengths(tier, figures["perLength"]),
        ]
    )
    print()


def _lengths(tier: KVCacheTier, rows: list[dict[str, Any]]) -> Iterator[list[str]]:
    held = held_tokens(tier.spec)
    for row in rows:
        if row["tokens"] not in SHOWN_LENGTHS:
            continue
        fetch, faster = "-", "not known"
        if row["tokens"] > held:
            faster = f"does not fit (the store holds {held:,})"
        elif "fetchSeconds" in row:
            fetch = seconds(row["fetchSeconds"])
            faster = "fetch" if row["wins"] else "recompute"
        yield [f"{row['tokens']:,}", seconds(row["recomputeSeconds"]), fetch, faster]


def next_steps(target: Target, tier: KVCacheTier) -> None:
    """Commands to copy, each with what one will see."""
    if target.context is None:
        cluster = LOCAL_CLUSTER.relative_to(CHECKOUT)
        say("The cluster goes on running. Give your shell its kubectl:")
        command(f'eval "$({cluster} env --name {LOCAL_NAME})"')
        print()
    for step in yaml.safe_load((Path(__file__).parent / "next.yaml").read_text()):
        say(step["do"])
        for arguments in step["kubectl"]:
            command(target.typed(arguments.format(tier=tier.metadata.name)))
        quote(step["see"].format(ranks=tier.spec.pool.ranks))
        print()
    say("make demo again brings everything back to the samples.")
    if target.context is None:
        say("make demo-down stops the cluster and removes all of it; what was built stays.")
        return
    say("To remove the demo from your cluster (the CRD stays: docs/install.md):")
    context = shlex.quote(target.context)
    command(f"kubectl --context {context} delete namespace {target.namespace}")
    command(f"helm --kube-context {context} uninstall kvtier --namespace kvtier-system")
