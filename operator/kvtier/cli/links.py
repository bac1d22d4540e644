"""``--links FILE``: the links of a tier, as its ``placement.links`` would have them."""

from collections.abc import Mapping
from typing import Any

from kvtier.api.load import InvalidTier, read_yaml
from kvtier.cli.errors import BadInput

_FIELD = "spec.placement.links"


def load(path: str) -> list[Any]:
    """The list in ``path``; what is in it is checked with the tier. Raises BadInput."""
    try:
        found = read_yaml(path, wanted="one list, as placement.links has it")
    except InvalidTier as error:
        raise BadInput(*error.errors) from None
    if not isinstance(found, list) or not found:
        raise BadInput(
            f"{path}: not a list of links; write one such as"
            " [{domain: zone, bitsPerSecond: 25G, roundTrip: 50us}]"
        )
    return found


def put(document: Mapping[str, Any], links: list[Any]) -> None:
    """Make them the links of a tier that may have others, or none."""
    spec = document.get("spec")
    if not isinstance(spec, dict):
        return
    placement = spec.get("placement")
    if placement is None:
        placement = spec["placement"] = {}
    if isinstance(placement, dict):
        placement["links"] = links


def told(line: str, path: str) -> str:
    """An error of the tier under the name of the file that it is in."""
    if not line.startswith(_FIELD):
        return line
    return f"{path}: {line.removeprefix(_FIELD).lstrip('.: ')}"
