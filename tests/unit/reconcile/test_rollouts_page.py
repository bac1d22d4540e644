"""What docs/rollouts.md shows is what the operator and the commands make of such a rollout.

``UPDATE_GOLDEN=1 .venv/bin/pytest tests/unit/reconcile/test_rollouts_page.py`` writes it there.
"""

import contextlib
import io
import os
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml
from generation_harness import NAME, NAMESPACE, engine, entry, id_of, later, remove, revised
from tier_harness import KEY, Operator

from kvtier.api.types import API_VERSION, KIND
from kvtier.cli.active import Controller
from kvtier.cli.live_pool import read_pool
from kvtier.cli.main import main
from kvtier.cli.status_report import text
from kvtier.cluster.protocol import TIER

PAGE = Path(__file__).parents[3] / "docs" / "rollouts.md"
HOUR = 3600.0
ROLLOUT = {"rollout": {"drainTimeout": "1h"}}
Spec = dict[str, Any]
R1, R2 = revised("r1", **ROLLOUT), revised("r2", **ROLLOUT)
SALTED = revised("r1", salt="2026-11-30", **ROLLOUT)
FP8 = revised("r1", kvCacheDtype="fp8_e4m3", **ROLLOUT)
A, B, C = id_of(R1), id_of(R2), id_of(SALTED)


def held(name: str, found: str) -> None:
    """The page's block of this name is ``found``; or it is written there."""
    page = PAGE.read_text("utf-8")
    block = re.search(rf"<!-- shown: {name} -->\n```\n(.*?)```\n", page, re.DOTALL)
    assert block is not None
    if os.environ.get("UPDATE_GOLDEN"):
        PAGE.write_text(page[: block.start(1)] + found + page[block.end(1) :], "utf-8")
    else:
        assert block[1] == found


async def screen(operator: Operator, *, first: str = "GENERATION", last: str = "") -> str:
    """A part of what ``kvtier status`` prints now: from the line that begins with ``first`` to the
    empty one after it, or with all that follows but for the last changes."""
    body = operator.cluster.peek(TIER, *KEY)
    assert body is not None
    pool = await read_pool(operator.cluster, NAMESPACE, NAME)
    shown = text(body, now=operator.clock.now(), runs=Controller(True), pool=pool).splitlines()
    start = next(n for n, line in enumerate(shown) if line.strip().startswith(first))
    end = len(shown) if last == "end" else shown.index("", start)
    if last == "end":
        changes = shown.index("Last changes", start)
        del shown[changes : shown.index("", changes) + 1]
    return "".join(f"{line}\n" for line in shown[start:end])


def events(operator: Operator) -> str:
    found = [event for event in operator.recorder.events if event.reason.startswith("Generation")]
    lines = [
        textwrap.fill(
            f"{event.type.value}  {event.reason}  {event.message}", 92, subsequent_indent="    "
        )
        for event in found
    ]
    return "".join(f"{line}\n" for line in lines)


def difference(old: Spec, new: Spec, folder: Path) -> str:
    """What ``kvtier generation -f old.yaml -f new.yaml`` prints."""
    for name, spec in (("old", old), ("new", new)):
        metadata = {"namespace": NAMESPACE, "name": NAME}
        body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(body))
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.chdir(folder):
        assert main(["generation", "-f", "old.yaml", "-f", "new.yaml"]) == 1
    return out.getvalue()


def pool(operator: Operator, *names: str, revision: str, generation: str) -> None:
    for name in names:
        engine(operator, name, revision=revision, generation=generation)


OLD = ("prefill-5c9d-k2xwq", "prefill-5c9d-lm8rt", "prefill-5c9d-zz4hp")
NEW = ("prefill-7f6b-4qnsd", "prefill-7f6b-9vjcm", "prefill-7f6b-x5t2g")


@pytest.fixture
async def rolled_out(ready: Operator) -> Operator:
    """Three engines use A of a tier that drains for an hour."""
    pool(ready, *OLD, revision="r1", generation=A)
    ready.apply(R1)
    await ready.settle()
    ready.recorder.events.clear()
    return ready


async def test_a_new_revision(rolled_out: Operator, tmp_path: Path) -> None:
    operator = rolled_out
    held("revision-difference", difference(R1, R2, tmp_path))
    operator.apply(R2)
    await operator.settle()
    await later(operator, 120)
    held("revision-applied", await screen(operator))
    remove(operator, *OLD[:2])
    pool(operator, *NEW[:2], revision="r2", generation=B)
    await later(operator, 240)
    held("revision-rolling", await screen(operator))
    pool(operator, NEW[2], revision="r2", generation=B)
    await later(operator, HOUR)
    held("revision-purged", await screen(operator))
    remove(operator, OLD[2])
    await later(operator, 60)
    held("revision-gone", await screen(operator))
    held("revision-events", events(operator))


async def test_a_fence_that_waits_for_the_kubelet(rolled_out: Operator) -> None:
    operator = rolled_out
    operator.apply(R2)
    remove(operator, *OLD[1:])
    pool(operator, *NEW, revision="r2", generation=B)
    await operator.settle()
    while entry(operator, A).state == "Draining":
        await operator.clock.advance(25)
        operator.queue.add(KEY)
        await operator.settle()
    held("revision-fenced", await screen(operator))


async def test_a_dtype(tmp_path: Path) -> None:
    held("dtype-difference", difference(R1, FP8, tmp_path))


async def test_weights_that_changed_in_place(rolled_out: Operator, tmp_path: Path) -> None:
    operator = rolled_out
    held("salt-difference", difference(R1, SALTED, tmp_path))
    operator.apply(SALTED)
    await operator.settle()
    await later(operator, 60)
    held("salt-applied", await screen(operator))


async def test_a_rollback(rolled_out: Operator) -> None:
    operator = rolled_out
    operator.apply(R2)
    await operator.settle()
    remove(operator, OLD[0])
    pool(operator, NEW[0], revision="r2", generation=B)
    await later(operator, 300)
    operator.apply(R1)
    await later(operator, 60)
    held("rolled-back", await screen(operator))


async def test_a_contamination_and_what_ends_it(rolled_out: Operator) -> None:
    operator = rolled_out
    pool(operator, NEW[0], revision="r2", generation=A)
    await operator.settle()
    held("contaminated", await screen(operator, last="end"))
    await later(operator, 60)
    held("contaminated-empty", await screen(operator))
    remove(operator, NEW[0])
    await later(operator, 60)
    held("contaminated-over", await screen(operator))


async def test_engines_without_a_secret(rolled_out: Operator) -> None:
    operator = rolled_out
    engine(operator, NEW[0], revision="r2", generation=None)
    await operator.settle()
    held("drifted", await screen(operator, last="end"))
