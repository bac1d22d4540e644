"""Figures that a run measured, printed and (when asked) kept in the docs.

A page has places for them, from ``<!-- figures: NAME -->`` to ``<!-- end of figures -->``.
"""

import json
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from livecluster.cluster import LiveCluster
from programs import CHECKOUT

DOCS = CHECKOUT / "docs"
RECORD = "KVTIER_RECORD"
"""Set it to 1 to write figures into the docs; they change with every run and machine."""
END = "<!-- end of figures -->\n"


def write(page: str, *, place: str, text: str) -> None:
    """Print the text and, when asked, put it in the page's place. The page must have it."""
    print(f"\n{text}")
    if os.environ.get(RECORD) == "1":
        path = DOCS / page
        before, _, after = _parts(path, place)
        path.write_text(f"{before}{_begin(place)}{text.strip()}\n{END}{after}")


def write_row(page: str, *, place: str, row: Sequence[str]) -> None:
    """Print one row and, when asked, put it in the table at that place.

    The row's first cell names it: a row of that name is replaced, another one is added at the end.
    The table's head stays as the page has it.
    """
    line = f"| {' | '.join(row)} |"
    print(f"\n{line}")
    if os.environ.get(RECORD) == "1":
        path = DOCS / page
        before, table, after = _parts(path, place)
        lines = table.strip().splitlines()
        same = [number for number, old in enumerate(lines) if old.startswith(f"| {row[0]} |")]
        if same:
            lines[same[0]] = line
        else:
            lines.append(line)
        path.write_text(f"{before}{_begin(place)}{chr(10).join(lines)}\n{END}{after}")


def table(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table. The first row is its head."""
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def circumstances(cluster: LiveCluster) -> str:
    """When, and on what machine and versions, in one line."""
    server = json.loads(cluster.kubectl("version", "-o", "json"))["serverVersion"]["gitVersion"]
    return (
        f"{machine()}, Kubernetes {server}, Valkey 9.1, etcd without fsync; control "
        "plane, three nodes, controller and clients share the machine."
    )


def machine() -> str:
    """When, and on what machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    today = datetime.now(UTC).date()
    return (
        f"{today}, {os.cpu_count()} cores ({_processor()}), {memory:.0f} GiB, Linux "
        f"{platform.release()}"
    )


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _begin(place: str) -> str:
    return f"<!-- figures: {place} -->\n"


def _parts(path: Path, place: str) -> tuple[str, str, str]:
    before, _, rest = path.read_text().partition(_begin(place))
    inside, end, after = rest.partition(END)
    assert end, f"{path.name} has no place {place}"
    return before, inside, after
