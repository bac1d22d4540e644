"""One generation after another for the kill campaign: what rolls, and what is not waited for."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from livecluster.cluster import Failed
from livecluster.fleet import fleet
from livecluster.tier import Tier

HANDED_ON = "kvtier.dev/test-handed-on"
EVERY_SECONDS = 3.0
DRAIN = "3s"


def roll_generation(tier: Tier) -> None:
    """Another revision in the tier, and an engine of it: the old generation drains, and goes."""
    tier.patch({"model": {"revision": "2"}, "rollout": {"drainTimeout": DRAIN}})
    with fleet(tier, replicas=1, rate=2) as engines:
        engines.deploy()


def is_alone(tier: Tier) -> bool:
    """Whether no generation is left but the one that the spec names."""
    return len((tier.body().get("status") or {}).get("generations", [])) == 1


@contextmanager
def files_brought(tier: Tier, *, due: Callable[[], bool]) -> Iterator[None]:
    """Have the kubelets bring the ranks' files of users now, and not within two minutes.

    ``due``: whether there is one to bring.
    """
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(EVERY_SECONDS):
            now = f"{HANDED_ON}={time.time()}"
            selector = f"kvtier.dev/tier-name={tier.name}"
            with suppress(Failed):
                if due():
                    tier.kubectl("annotate", "pods", "-l", selector, "--overwrite", now)

    thread = threading.Thread(target=run, name="files-brought", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
