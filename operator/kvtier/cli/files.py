"""The tier file that most commands take."""

import argparse

from kvtier.api.load import InvalidTier, load_file
from kvtier.api.types import KVCacheTier
from kvtier.cli.errors import BadInput


def add_file_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-f", "--file", required=True, metavar="FILE", help="a KVCacheTier; - is standard input"
    )


def load(path: str) -> KVCacheTier:
    """The tier in ``path``. Raises BadInput, also for what is no readable file."""
    try:
        return load_file(path)
    except InvalidTier as error:
        raise BadInput(*error.errors) from None
