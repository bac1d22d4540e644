"""``kvtier watch`` as a person leaves it open beside a tier."""

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from livecluster.api import Object
from livecluster.cluster import KVTIER
from livecluster.tier import Tier
from programs import end

Told = Callable[[], list[Object]]


@contextmanager
def watching(tier: Tier, file: Path, *flags: str) -> Iterator[Told]:
    """Watch until the block ends, into ``file``; yields what gives all that was told by now."""
    command = [KVTIER, "watch", tier.name, "-n", tier.namespace, "-o", "json", *flags]
    with file.open("w") as output:
        process = subprocess.Popen(command, stdout=output, env=tier.cluster.environment)
    try:
        # What is half written has no end of line yet.
        yield lambda: [json.loads(line) for line in file.read_text().split("\n")[:-1]]
    finally:
        assert end(process), "kvtier watch does not end by SIGTERM"
