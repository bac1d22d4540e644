"""Pure: AdmissionReview v1, the words that the API server and a webhook exchange."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvtier.api.scalars import shown
from kvtier.api.types import GROUP, PLURAL, VERSION
from kvtier.redact import redact

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"
Resource = Mapping[str, str]
RESOURCE: Final[Resource] = {"group": GROUP, "version": VERSION, "resource": PLURAL}
PODS: Final[Resource] = {"group": "", "version": "v1", "resource": "pods"}
MAX_UID: Final = 128
MAX_LINES: Final = 16
MAX_REFUSAL: Final = 4096
"""Characters of a refusal; kubectl prints it in one piece."""
MAX_WARNINGS: Final = 3072
"""Characters of all warnings. Above 4096, those of other webhooks included, the API server cuts
each to 256, and a figure at its end is lost."""

MAX_VALUES: Final = 2**14
"""Of a body, about; a review of a small tier has 66. Reading 2**17 takes 140 MiB and many seconds,
in which nobody else is answered."""
_OPENERS: Final = (b",", b"[", b"{")


_ROOM: Final = 64
"""Characters of the line that tells how many more there are."""


class BadReview(ValueError):
    """Not a review of what is asked for here; one line that says why."""


@dataclass(frozen=True, slots=True)
class Request:
    """What somebody asks of the API server. The objects are as it would store them, or None.

    An object that is to be created need not have a namespace: ``namespace`` says it.
    """

    uid: str
    operation: str
    subresource: str = ""
    object: Mapping[str, Any] | None = None
    old_object: Mapping[str, Any] | None = None
    namespace: str = ""
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """Lines for the person who asks. Any refusal refuses. ``patch`` is one of JSON."""

    refusals: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    patch: tuple[Mapping[str, Any], ...] = ()


def parse(body: bytes, *, of: Resource = RESOURCE) -> Request:
    """The request that ``body`` asks about. Raises BadReview for anything else."""
    if sum(map(body.count, _OPENERS)) > MAX_VALUES:
        raise BadReview(f"the body has more than {MAX_VALUES} values; send an AdmissionReview")
    try:
        review = json.loads(body)
    except (ValueError, RecursionError):
        raise BadReview("the body is no JSON; send an AdmissionReview") from None
    if not isinstance(review, dict):
        raise BadReview("the body is no object; send an AdmissionReview")
    for field, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        if review.get(field) != wanted:
            raise BadReview(f"{field}: {shown(review.get(field))} is not {wanted}; send {wanted}")
    request = _object(review, "request", "request")
    if request is None:
        raise BadReview("request: missing; send what is to be reviewed")
    resource = _object(request, "resource", "request.resource")
    if resource != of:
        version = "/".join(filter(None, (of["group"], of["version"])))
        raise BadReview(
            f"request.resource: {shown(resource)} is not {of['resource']} of {version}; send no "
            "other to this webhook"
        )
    return Request(
        uid=_text(request, "uid"),
        operation=_text(request, "operation"),
        subresource=_text(request, "subResource", default=""),
        object=_object(request, "object", "request.object"),
        old_object=_object(request, "oldObject", "request.oldObject"),
        namespace=_text(request, "namespace", default=""),
        dry_run=request.get("dryRun") is True,
    )


def _text(request: Mapping[str, Any], field: str, *, default: str | None = None) -> str:
    value = request.get(field)
    if value is None and default is not None:
        return default
    if not isinstance(value, str) or not 0 < len(value) <= MAX_UID:
        raise BadReview(f"request.{field}: {shown(value)} is no text of at most {MAX_UID}")
    return value


def _object(parent: Mapping[str, Any], field: str, path: str) -> Mapping[str, Any] | None:
    value = parent.get(field)
    if value is not None and not isinstance(value, dict):
        raise BadReview(f"{path}: {shown(value)} is no object")
    return value


def answer(request: Request, decision: Decision) -> dict[str, Any]:
    """The AdmissionReview that answers ``request``."""
    response: dict[str, Any] = {"uid": request.uid, "allowed": not decision.refusals}
    if decision.refusals:
        response["status"] = {
            "code": 422,
            "reason": "Invalid",
            "message": "; ".join(bounded(decision.refusals, characters=MAX_REFUSAL)),
        }
    if decision.warnings:
        response["warnings"] = bounded(decision.warnings, characters=MAX_WARNINGS)
    if decision.patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(json.dumps(decision.patch).encode()).decode()
    return {"apiVersion": API_VERSION, "kind": KIND, "response": response}


def bounded(lines: Sequence[str], *, characters: int) -> list[str]:
    """``lines``, each on one line, cut at ``characters`` in all: then the last says how many more.

    ``characters`` is at least 100.
    """
    texts = [
        redact("".join(char if char.isprintable() else " " for char in line)) for line in lines
    ]
    if len(texts) <= MAX_LINES and sum(map(len, texts)) <= characters:
        return texts
    left, found = characters - _ROOM, list[str]()
    for text in texts[: MAX_LINES - 1]:
        if left < 2:
            break
        found.append(text if len(text) <= left else f"{text[: left - 1]}…")
        left -= len(found[-1])
    return [*found, f"{len(texts) - len(found)} more, and all in full: kvtier plan -f FILE"]
