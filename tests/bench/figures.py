"""A table of figures, printed and (when asked) kept in docs/benchmarks.md."""

import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path

from livecluster.cluster import CHECKOUT, LiveCluster

PAGE = CHECKOUT / "docs" / "benchmarks.md"
RECORD = "KVTIER_BENCH_RECORD"
"""Set it to 1 to write the figures into the page; they change with every run and machine."""
BEGIN, END = "<!-- figures: make bench -->\n", "<!-- end of figures -->\n"


def report(title: str, rows: list[tuple[str, ...]], *, cluster: LiveCluster) -> None:
    """Print the table. The first row is its head."""
    head, *body = rows
    lines = [head, tuple("---" for _ in head), *body]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    text = f"{title}\n\n{table}\n{_circumstances(cluster)}\n"
    print(f"\n{text}")
    if os.environ.get(RECORD) == "1":
        before, _, rest = PAGE.read_text().partition(BEGIN)
        _, _, after = rest.partition(END)
        PAGE.write_text(f"{before}{BEGIN}{text}{END}{after}")


def _circumstances(cluster: LiveCluster) -> str:
    server = json.loads(cluster.kubectl("version", "-o", "json"))["serverVersion"]["gitVersion"]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    today = datetime.now(UTC).date()
    return (
        f"{today}, {os.cpu_count()} cores ({_processor()}), {memory:.0f} GiB, Linux "
        f"{platform.release()}, Kubernetes {server}, Valkey 9.1, etcd without fsync; control "
        "plane, three nodes, controller and clients share the machine."
    )


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
