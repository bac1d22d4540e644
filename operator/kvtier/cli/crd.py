"""``kvtier crd``."""

import argparse

from kvtier.api.crd import crd_yaml


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It takes none."""


def run(arguments: argparse.Namespace) -> int:
    print(crd_yaml(), end="")
    return 0
