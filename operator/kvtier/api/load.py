"""From a document to a tier: parsing, every check, and errors a person can act on."""

import re
import sys
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError

from kvtier.api import explain, validate
from kvtier.api.scalars import shown
from kvtier.api.types import API_VERSION, KIND, KVCacheTier
from kvtier.api.yaml_scalars import ambiguity

_KINDS: Final = re.compile(r"""^kind: *["']?([A-Za-z]{1,60})["']? *(?:#.*)?$""", re.MULTILINE)
"""Of the objects in a file of YAML, each line from its first column."""
_ANY_KIND: Final = re.compile(r"""^kind *:|"kind"\s*:""", re.MULTILINE)
_MODEL_CONFIG: Final = re.compile(r""""(?:model_type|architectures)"\s*:""")
MAX_FILE_BYTES = 3 * 1024 * 1024
"""No larger object passes the API server."""


class InvalidTier(ValueError):
    """A tier that cannot be used; ``errors`` has one line per problem, each naming its field."""

    def __init__(self, *errors: str) -> None:
        super().__init__("; ".join(errors))
        self.errors: tuple[str, ...] = errors


def parse_tier(document: Mapping[str, Any]) -> KVCacheTier:
    """The tier that ``document`` (an object as the API server stores it) describes.

    Runs the schema and every semantic check, so what is returned can be judged and rendered.
    Raises InvalidTier with every problem found, in the order of the schema.
    """
    if not isinstance(document, Mapping):
        raise InvalidTier(f"the document is not an object; write one {KIND}")
    errors = [
        f"{field}: {shown(document.get(field))} is not {wanted}; write {field}: {wanted}"
        for field, wanted in (("apiVersion", API_VERSION), ("kind", KIND))
        if document.get(field, wanted) != wanted
    ]
    if errors:
        raise InvalidTier(*errors)
    try:
        tier = KVCacheTier.model_validate(_without_nulls(document), by_alias=True, by_name=False)
    except ValidationError as error:
        raise InvalidTier(*explain.lines(error)) from None
    if problems := validate.problems(tier):
        raise InvalidTier(*problems)
    return tier


def load_file(path: str) -> KVCacheTier:
    """The tier in the YAML or JSON file ``path``; ``-`` is standard input.

    Raises InvalidTier, also for what ``read_document`` refuses.
    """
    return parse_tier(read_document(path))


def read_document(path: str) -> dict[str, Any]:
    """The one object in the YAML or JSON file ``path``, of which only the kind is checked.

    Raises InvalidTier for a file that cannot be read, holds several documents, repeats a key
    (which ``kubectl`` lets pass, keeping the last), or has an unquoted scalar that is one thing to
    one YAML reader and another to the next.
    """
    wanted = f"one {KIND}"
    text = as_text(read_bytes(path, fix=f"write {wanted}"), path, fix="write YAML or JSON")
    # Before the YAML is judged as that of a tier: it may be right for what it is.
    kinds = _KINDS.findall(text)
    if kinds and KIND not in kinds:
        raise InvalidTier(f"{path}: this is a {kinds[0]}, not a {KIND}; name the file of a tier")
    if _MODEL_CONFIG.search(text) and not _ANY_KIND.search(text):
        raise InvalidTier(
            f"{path}: this is a model's config.json, not a {KIND}; give it as --model-config, and "
            "as -f the file of a tier"
        )
    document = _one_document(text, path, wanted)
    if not isinstance(document, dict):
        raise InvalidTier(f"{path}: not an object; write one {KIND}")
    missing = [
        f"{field}: missing; write {field}: {wanted}"
        for field, wanted in (("apiVersion", API_VERSION), ("kind", KIND))
        if field not in document
    ]
    if missing:
        raise InvalidTier(*missing)
    return document


def read_yaml(path: str, *, wanted: str) -> Any:
    """The one document in the YAML or JSON file ``path``; ``-`` is standard input.

    Raises InvalidTier as ``read_document`` does; ``wanted`` is what the file should hold.
    """
    text = as_text(read_bytes(path, fix=f"write {wanted}"), path, fix="write YAML or JSON")
    return _one_document(text, path, wanted)


def read_bytes(path: str, *, most: int = MAX_FILE_BYTES, fix: str) -> bytes:
    """What is in the file ``path``; ``-`` is standard input.

    Raises InvalidTier for a file that cannot be read or holds more than ``most`` bytes; ``fix`` is
    what to do about the latter.
    """
    try:
        if path == "-":
            if sys.stdin is None:
                raise InvalidTier("-: standard input is closed; name a file")
            data = sys.stdin.buffer.read(most + 1)
        else:
            with Path(path).open("rb") as file:
                data = file.read(most + 1)
    except OSError as error:
        raise InvalidTier(f"{path}: {error.strerror}; name a readable file") from None
    except ValueError as error:  # a NUL in the path
        raise InvalidTier(f"{path!r}: {error}; name a readable file") from None
    if len(data) > most:
        raise InvalidTier(f"{path}: larger than {most} bytes; {fix}")
    return data


def as_text(data: bytes, path: str, *, fix: str) -> str:
    """The text of what was read from ``path``, without a byte order mark. Raises InvalidTier."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidTier(f"{path}: not UTF-8 text; {fix}") from None


def yaml_documents(text: str, path: str, *, loader: Any, fix: str) -> list[Any]:
    """All documents of what was read from ``path``, by a loader of PyYAML. Raises InvalidTier."""
    try:
        return list(yaml.load_all(text, loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f" line {mark.line + 1}" if mark is not None else ""
        # What this module's own loader refuses says itself what to write.
        end = "" if isinstance(error, _Refused) else f"; {fix}"
        raise InvalidTier(f"{path}:{line} {error.problem}{end}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        first = str(error).splitlines()[0] if str(error) else "nested too deeply"
        raise InvalidTier(f"{path}: {first}; {fix}") from None


def _one_document(text: str, path: str, wanted: str) -> Any:
    found = yaml_documents(text, path, loader=_Loader, fix="correct the YAML")
    documents = [each for each in found if each is not None]
    if len(documents) != 1:
        raise InvalidTier(f"{path}: {len(documents)} documents; write exactly {wanted}")
    return documents[0]


_MERGE = "tag:yaml.org,2002:merge"


class _Refused(yaml.MarkedYAMLError):
    """YAML that is right, but not for a tier; ``problem`` names the fix."""


class _Loader(yaml.SafeLoader):
    """YAML without repeated keys and without scalars that readers disagree about."""

    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        untagged, _ = event.implicit
        if untagged and event.tag is None and (problem := ambiguity(event.value)):
            raise _Refused(problem=problem, problem_mark=event.start_mark)
        node: yaml.ScalarNode = super().compose_scalar_node(anchor)
        return node


def _mapping_without_repeats(loader: _Loader, node: yaml.MappingNode) -> dict[Hashable, Any]:
    seen: set[Hashable] = set()
    for key_node, _ in node.value:
        if key_node.tag == _MERGE:
            continue
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, Hashable):
            problem = f"key {shown(key)} is not text; write a field's name"
            raise _Refused(problem=problem, problem_mark=key_node.start_mark)
        if key in seen:
            problem = f"key {shown(key)} is there twice; keep one"
            raise _Refused(problem=problem, problem_mark=key_node.start_mark)
        seen.add(key)
    return loader.construct_mapping(node, deep=True)  # flattens merge keys


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping_without_repeats)


def _without_nulls(value: Any, done: dict[int, Any] | None = None) -> Any:
    """``value`` without fields that are null: the API server drops those that have a default.

    ``done``: by identity, so that a value that YAML aliases name many times is walked once.
    """
    done = {} if done is None else done
    if id(value) in done:
        return done[id(value)]
    if isinstance(value, Mapping):
        cleaned: Any = {
            key: _without_nulls(item, done) for key, item in value.items() if item is not None
        }
    elif isinstance(value, list):
        cleaned = [_without_nulls(item, done) for item in value]
    else:
        return value
    done[id(value)] = cleaned
    return cleaned
