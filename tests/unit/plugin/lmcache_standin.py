"""The few parts of LMCache that the plugin imports, where LMCache itself is too large to install.

The suite that runs on them runs on the real LMCache too (tests/campaign-engines), so that they
cannot drift.
"""

import importlib.util
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any


def install() -> None:
    """Put them where LMCache would be, unless it is there."""
    if importlib.util.find_spec("lmcache") is not None:
        return
    base = "lmcache.v1.distributed"
    connector = "lmcache.v1.storage_backend.connector"
    for name, contents in {
        "lmcache": {},
        "lmcache.logging": {"init_logger": logging.getLogger},
        "lmcache.lmcache_native": {"Bitmap": Bitmap},
        "lmcache.v1": {},
        base: {},
        f"{base}.api": {"ObjectKey": ObjectKey},
        f"{base}.internal_api": {"L2StoreResult": L2StoreResult},
        f"{base}.l2_adapters": {},
        f"{base}.l2_adapters.base": {"L2AdapterInterface": L2AdapterInterface},
        "lmcache.v1.mp_observability": {},
        "lmcache.v1.mp_observability.event": {
            "Event": SimpleNamespace,
            "EventType": SimpleNamespace(L2_KEYS_STORED="l2.keys.stored"),
        },
        "lmcache.v1.platform": {"create_event_notifier": Notifier},
        "lmcache.v1.storage_backend": {},
        connector: {"ConnectorAdapter": ConnectorAdapter},
        f"{connector}.base_connector": {"RemoteConnector": RemoteConnector},
    }.items():
        module = ModuleType(name)
        module.__path__ = []
        vars(module).update(contents)
        sys.modules[name] = module


class Bitmap:
    def __init__(self, size: int) -> None:
        self._bits = [False] * size

    def set(self, at: int) -> None:
        self._bits[at] = True

    def test(self, at: int) -> bool:
        return self._bits[at]

    def __len__(self) -> int:
        return len(self._bits)


@dataclass(frozen=True)
class ObjectKey:
    chunk_hash: bytes
    model_name: str
    kv_rank: int
    object_group_id: int = 0
    cache_salt: str = ""


class L2StoreResult(int):
    def __new__(cls, success: bool, size: int) -> "L2StoreResult":
        return super().__new__(cls, size if success else -1)

    def is_successful(self) -> bool:
        return self >= 0

    def bytes_transferred(self) -> int:
        return max(0, self)


@dataclass
class _Bus:
    published: list[Any] = field(default_factory=list)

    def publish(self, event: Any) -> None:
        self.published.append(event)


class L2AdapterInterface:
    def __init__(self) -> None:
        self._listeners: list[Any] = []
        self._backend_name = ""
        self._shared = False
        self._event_bus = _Bus()

    def register_listener(self, listener: Any) -> None:
        self._listeners.append(listener)

    def _notify_keys_accessed(self, keys: list[Any]) -> None:
        for listener in self._listeners:
            listener.on_l2_keys_accessed(keys)


class Notifier:
    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._fd

    def notify(self) -> None:
        os.eventfd_write(self._fd, 1)

    def close(self) -> None:
        os.close(self._fd)


class ConnectorAdapter:
    def __init__(self, schema: str = "") -> None:
        self.schema = schema


class RemoteConnector:
    def __init__(self, config: Any, metadata: Any) -> None:
        shapes: Callable[[], Any] = metadata.get_shapes
        self.meta_shapes, self.meta_dtypes = shapes(), metadata.get_dtypes()
        self.meta_fmt = None
