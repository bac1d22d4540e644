"""What LMCache's and vLLM's own code make of an engine Secret's files. Runs in their environment.

``engine_parser.py DIRECTORY``: one JSON document on standard output. The environment is what
``env`` of the Secret says. Nothing is started.
"""

import argparse
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any


def servers(directory: Path) -> list[dict[str, Any]]:
    """What ``lmcache server`` would run by, for each of them."""
    from lmcache.cli.commands.server import ServerCommand
    from lmcache.v1.distributed.config import parse_args_to_config
    from lmcache.v1.multiprocess.config import (
        parse_args_to_http_frontend_config,
        parse_args_to_mp_server_config,
    )

    parsed = []
    for file in sorted(directory.glob("server-args*")):
        adapter = directory / f"l2-adapter{file.name.removeprefix('server-args')}.json"
        parser = argparse.ArgumentParser()
        ServerCommand().add_arguments(parser)
        args = parser.parse_args([*file.read_text().split(), "--l2-adapter", adapter.read_text()])
        mp, http = parse_args_to_mp_server_config(args), parse_args_to_http_frontend_config(args)
        storage = parse_args_to_config(args)
        memory = storage.l1_manager_config.memory_config
        (l2,) = storage.l2_adapter_config.adapters
        parsed.append(
            {
                "mp": [mp.host, mp.port, mp.chunk_size, mp.hash_algorithm],
                "transfer": mp.supported_transfer_mode,
                "http": [http.http_host, http.http_port],
                "l1_bytes": memory.size_in_bytes,
                "adapter": adapter_of(l2),
            }
        )
    return parsed


def adapter_of(config: Any) -> dict[str, Any]:
    """The adapter's configuration by its own class, and of a plugin by the plugin's."""
    if type(config).__name__ != "PluginL2AdapterConfig":
        return {"class": type(config).__name__, "fields": fields(config)}
    return {
        "class": "PluginL2AdapterConfig",
        "plugin": plugin(config.module_path, config.class_name, config.adapter_params),
    }


def plugin(module: str, name: str, parameters: Any) -> dict[str, Any]:
    """The plugin's class as LMCache would load it, and what it understands of its parameters."""
    import importlib

    from kvtier_lmcache.config import parse

    loaded = getattr(importlib.import_module(module), name)
    return {
        "from": sys.modules[loaded.__module__].__file__,
        "config": fields(parse(parameters)),
        "bases": [base.__name__ for base in loaded.__mro__],
    }


def fields(value: Any) -> dict[str, str]:
    names = getattr(type(value), "__dataclass_fields__", None) or vars(value)
    return {name: str(getattr(value, name)) for name in names}


def in_process() -> dict[str, Any]:
    """LMCache's configuration of a worker, and what it warned of."""
    told: list[str] = []

    class Warnings(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.WARNING:
                told.append(record.getMessage())

    from lmcache.v1 import config, config_base

    for module in (config, config_base):
        module.logger.addHandler(Warnings())
    found = config.load_engine_config_with_overrides()
    extra = found.extra_config
    name = f"remote_storage_plugin.{found.remote_storage_plugins[0]}"
    return {
        "warnings": told,
        "chunk_size": found.chunk_size,
        "max_local_cpu_size": found.max_local_cpu_size,
        "min_retrieve_tokens": found.min_retrieve_tokens,
        "pre_caching_hash_algorithm": found.pre_caching_hash_algorithm,
        "plugin": plugin(
            extra[f"{name}.module_path"], extra[f"{name}.class_name"], extra["kvtier"]
        ),
    }


def vllm(directory: Path) -> dict[str, str]:
    from vllm.config import KVTransferConfig

    document = json.loads((directory / "kv-transfer-config.json").read_text())
    return fields(KVTransferConfig(**document))


def main() -> None:
    directory = Path(sys.argv[1])
    found: dict[str, Any]
    if len(sys.argv) > 2:
        found = vllm(directory)
    elif "LMCACHE_CONFIG_FILE" in os.environ:
        found = in_process()
    else:
        found = {"servers": servers(directory)}
    # LMCache's log goes to standard output too: the answer is its last line.
    print(f"\n{json.dumps(found)}")


if __name__ == "__main__":
    main()
