"""Tiers that can never work, next to which others must be served all the same."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from livecluster.cluster import LiveCluster
from livecluster.faults import Faults, stopped_processes
from livecluster.fixtures import tiers
from livecluster.waiting import eventually

SPECS: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
TOLD_SECONDS = 60.0


@contextmanager
def poisoned(live: LiveCluster) -> Iterator[list[str]]:
    """Tiers that poison in every way there is, told of in their status. Yields their names.

    Beside those of poison.yaml: ``hangs`` has a rank that is frozen, ``refused`` lives in a
    namespace whose quota lets it have no Service.
    """
    with tiers(live, label="poison") as new, tiers(live, label="poison-quota") as poor:
        hanging, refused = new("hangs"), poor("refused")
        hanging.apply()
        hanging.wait_ready()
        live.apply(
            {
                "apiVersion": "v1",
                "kind": "ResourceQuota",
                "metadata": {"name": "nothing", "namespace": refused.namespace},
                "spec": {"hard": {"count/services": "0"}},
            }
        )
        server = Faults(live).server_pid(hanging.containers()[0])
        with stopped_processes([server]):
            made = [new(name) for name in SPECS]
            for tier in made:
                tier.apply(SPECS[tier.name])
            eventually(
                lambda: live.api.get("resourcequotas", refused.namespace, "nothing"),
                seconds=TOLD_SECONDS,
                what="the quota counts",
            )
            refused.apply()
            for tier in (*made, refused):
                eventually(
                    lambda tier=tier: tier.condition("Ready").get("status") == "False",  # type: ignore[misc]
                    seconds=TOLD_SECONDS,
                    what=f"{tier.name} says that it is not Ready",
                )
            yield [*SPECS, "hangs", "refused"]
