"""Where engines find what the Secret names: its files, and the ranks."""

from dataclasses import dataclass
from typing import Final

from kvtier.api.types import KVCacheTier
from kvtier.render.names import PORT, host

MOUNT_PATH: Final = "/kvtier"
"""Where engines mount the Secret (docs/engines.md)."""


@dataclass(frozen=True, slots=True)
class Mount:
    """``addresses`` are (host, port) of each rank; without them those of the ranks' Services."""

    directory: str = MOUNT_PATH
    addresses: tuple[tuple[str, int], ...] = ()

    def address(self, tier: KVCacheTier, rank: int) -> tuple[str, int]:
        if self.addresses:
            return self.addresses[rank]
        return host(tier.metadata.name, namespace=tier.metadata.namespace, rank=rank), PORT

    def file(self, key: str) -> str:
        return f"{self.directory}/{key}"


IN_CLUSTER: Final = Mount()
