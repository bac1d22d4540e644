"""Validation errors as lines that name the field and the fix."""

import difflib
import re
import types
import typing
from collections.abc import Callable
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from kvtier.api.scalars import shown
from kvtier.api.types import KVCacheTier

MAX_LINES: Final = 64
"""More help nobody; a hundred thousand took 17 seconds, in which the webhook answered no other."""
_PLAIN = re.compile(r"[!-~]{1,120}")
"""Names as people write them: printable and without spaces."""

_LAYOUTS: Final = (
    ": one of gqa {layers, kvHeads, headDim}, mla {layers, kvLoraRank, qkRopeHeadDim}, groups, or"
    " bytesPerToken; kvtier layout --model-config config.json prints it, and plan, render and"
    " generation take --model-config themselves"
)


def lines(error: ValidationError) -> list[str]:
    """One line per problem: ``spec.pool.ranks: 0 is below 1; write 1 or more (...)``.

    Of very many only the first, and a line that counts the rest.
    """
    details = error.errors(include_url=False)
    found = [_line(detail) for detail in details[:MAX_LINES]]
    more = len(details) - len(found)
    return [*found, f"the document: {more} more problems; correct these first"] if more else found


def path(loc: tuple[int | str, ...]) -> str:
    """``("spec", "links", 0, "domain")`` as ``spec.links[0].domain``."""
    text = ""
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part != "[key]":
            # An unknown field may have any name, also one that would break the line.
            name = part if _PLAIN.fullmatch(part) else shown(part)
            text += f".{name}" if text else name
    return text or "the document"


def _line(detail: ErrorDetails) -> str:
    loc = tuple(detail["loc"])
    say = _SAY.get(detail["type"])
    problem = say(detail) if say else f"{shown(detail['input'])}: {detail['msg']}; correct it"
    if detail["type"] == "missing" and loc == ("spec", "model", "layout"):
        problem += _LAYOUTS
    elif detail["type"] == "extra_forbidden":
        problem += _unknown_fix(loc)
    elif detail["type"] != "value_error" and (about := _description(loc)):
        problem += f" ({about})"
    return f"{path(loc)}: {problem}"


def _below(detail: ErrorDetails) -> str:
    bound = detail["ctx"]["ge"]
    return f"{shown(detail['input'])} is below {bound}; write {bound} or more"


def _above(detail: ErrorDetails) -> str:
    bound = detail["ctx"]["le"]
    return f"{shown(detail['input'])} is above {bound}; write {bound} or less"


def _enum(detail: ErrorDetails) -> str:
    value = detail["input"]
    if not isinstance(value, str) and f"'{value}'" in detail["ctx"]["expected"]:
        return f'{shown(value)} is a number, not a string; write it in quotes: "{value}"'
    return f"{shown(detail['input'])} is not supported; write {detail['ctx']['expected']}"


def _too_long(detail: ErrorDetails) -> str:
    return f"longer than {detail['ctx']['max_length']}; shorten it"


def _too_short(detail: ErrorDetails) -> str:
    return "empty; write a value"


def _wants(what: str) -> Callable[[ErrorDetails], str]:
    return lambda detail: f"{shown(detail['input'])} is not {what}; write {what}"


def _string(detail: ErrorDetails) -> str:
    value = detail["input"]
    if isinstance(value, bool):
        return f"{str(value).lower()} is true or false to YAML, not a string; put it in quotes"
    if isinstance(value, int | float):
        return f"{shown(value)} is a number, not a string; put it in quotes"
    return f"{shown(value)} is not a string; write one"


def _value_error(detail: ErrorDetails) -> str:
    return str(detail["ctx"]["error"])


_SAY: dict[str, Callable[[ErrorDetails], str]] = {
    "missing": lambda detail: "missing; add it",
    "extra_forbidden": lambda detail: "unknown field",
    "greater_than_equal": _below,
    "less_than_equal": _above,
    "enum": _enum,
    "literal_error": _enum,
    "string_too_long": _too_long,
    "too_long": _too_long,
    "string_too_short": _too_short,
    "too_short": _too_short,
    "string_type": _string,
    "string_unicode": _string,
    "int_type": _wants("a whole number"),
    "int_parsing": _wants("a whole number"),
    "int_from_float": _wants("a whole number"),
    "int_parsing_size": _wants("a number of reasonable size"),
    "finite_number": _wants("a finite number"),
    "bool_type": _wants("true or false"),
    "bool_parsing": _wants("true or false"),
    "list_type": _wants("a list"),
    "dict_type": _wants("a map"),
    "model_type": _wants("an object"),
    "model_attributes_type": _wants("an object"),
    "invalid_key": _wants("a string key"),
    "value_error": _value_error,
}


def _description(loc: tuple[int | str, ...]) -> str:
    """The first sentence of the field's description."""
    field = _field(loc)
    if field is None or not field.description:
        return ""
    return field.description.split(". ")[0].rstrip(".")


def _unknown_fix(loc: tuple[int | str, ...]) -> str:
    model = _model_at(loc[:-1])
    names = [field.alias or name for name, field in model.model_fields.items()] if model else []
    close = difflib.get_close_matches(str(loc[-1]), names, n=1)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; remove it (known here: {', '.join(sorted(names))})" if names else "; remove it"


def _field(loc: tuple[int | str, ...]) -> FieldInfo | None:
    named = [part for part in loc if isinstance(part, str)]
    model = _model_at(tuple(named[:-1]))
    if model is None or not named:
        return None
    return _by_alias(model, named[-1])


def _model_at(loc: tuple[int | str, ...]) -> type[BaseModel] | None:
    model: type[BaseModel] | None = KVCacheTier
    for part in loc:
        if isinstance(part, int):
            continue
        field = _by_alias(model, part) if model else None
        model = _model_in(field.annotation) if field else None
    return model


def _by_alias(model: type[BaseModel], alias: str) -> FieldInfo | None:
    for name, field in model.model_fields.items():
        if (field.alias or name) == alias:
            return field
    return None


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model that ``annotation`` (X, X | None, list[X]) holds."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if typing.get_origin(annotation) in (list, typing.Union, types.UnionType):
        for argument in typing.get_args(annotation):
            if (found := _model_in(argument)) is not None:
                return found
    return None
