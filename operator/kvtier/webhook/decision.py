"""Pure: what the author of a tier is told at apply time.

The same functions decide in the reconciler, which says in a condition what a webhook that was away
did not say here.
"""

from collections.abc import Mapping
from typing import Any, Final

from kvtier.api import reasons
from kvtier.api.load import InvalidTier, parse_tier
from kvtier.api.types import KVCacheTierSpec
from kvtier.breakeven.assessment import Verdict
from kvtier.generation.entry import GenerationState
from kvtier.generation.identity import generation_id
from kvtier.placement import judgement as placement
from kvtier.webhook.review import BadReview, Decision, Request

_WORTH_A_WARNING: Final = (Verdict.PAYS_WHEN_LONG, Verdict.PAYS_UNDER_LOAD, Verdict.NEVER_PAYS)


def judge(document: Mapping[str, Any], *, made: bool = False) -> Decision:
    """What is to be said of a tier as it is; ``made``: one with ranks, which no verdict takes."""
    try:
        spec = parse_tier(document).spec
    except InvalidTier as error:
        return Decision(refusals=error.errors)
    found = placement.judge(spec)
    assessment, rejected = found.assessment, None if made else found.rejected
    told = assessment.verdict in _WORTH_A_WARNING
    warnings = [f"By the declared figures {assessment.verdict.value}: {assessment.message}"] * told
    warnings += [
        f"{one.reason}: {one.message}"
        for one in found.findings
        if one != rejected and not (told and one.reason == assessment.reason)
    ]
    if rejected is None:
        return Decision(warnings=tuple(warnings))
    refusal = f"spec.placement.onReject: Block, and {rejected.reason}: {rejected.message}"
    return Decision(refusals=(refusal,), warnings=tuple(warnings))


def decide(request: Request) -> Decision:
    """What is to be said of a request.

    Nothing that leaves the spec as it is is ever refused: a tier that an earlier release took stays
    deletable, and its metadata and status writable. Nor is an edit refused for a problem that the
    stored spec has already, nor one of a tier that is made for what speaks against making it: those
    are warnings. Raises BadReview where the request lacks its object.
    """
    if request.operation not in ("CREATE", "UPDATE") or request.subresource:
        return Decision()
    new, old = request.object, request.old_object
    if new is None:
        raise BadReview(f"request.object: missing; a review of {request.operation} has one")
    if request.operation == "CREATE":
        return judge(new)
    if old is None:
        raise BadReview("request.oldObject: missing; a review of UPDATE has one")
    if new.get("spec") == old.get("spec") or _is_going(new):
        return Decision()
    made = _is_made(old)
    decision, before = judge(new, made=made), judge(old, made=made).refusals
    already = tuple(f"As before, {line}" for line in decision.refusals if line in before)
    return Decision(
        refusals=tuple(line for line in decision.refusals if line not in before),
        warnings=(*already, *decision.warnings, *(_another_generation(new, old) if made else ())),
    )


def _is_going(document: Mapping[str, Any]) -> bool:
    metadata = document.get("metadata")
    return isinstance(metadata, Mapping) and bool(metadata.get("deletionTimestamp"))


def _is_made(document: Mapping[str, Any]) -> bool:
    """Whether the tier has ranks, or is to get them, by its status."""
    status = document.get("status")
    conditions = status.get("conditions") if isinstance(status, Mapping) else None
    return any(
        isinstance(each, Mapping)
        and each.get("type") == reasons.STORE_READY
        and each.get("reason") != reasons.PLACEMENT_REJECTED
        for each in (conditions if isinstance(conditions, list) else ())
    )


def _another_generation(new: Mapping[str, Any], old: Mapping[str, Any]) -> tuple[str, ...]:
    """That the edit asks for another generation of KV than the tier serves, and what follows."""
    spec, before, served = _spec(new), _spec(old), _served(old)
    if spec is None or served is None or generation_id(spec) == served:
        return ()
    when = f"once Ready engines have used that for {spec.rollout.drain_timeout}"
    if before is not None and before.model.salt != spec.model.salt:
        when = "at once, since the salt is another"
    return (
        f"This changes what identifies the KV: engines need the Secret of generation "
        f"{generation_id(spec)}. The one that is served, {served}, is fenced {when}.",
    )


def _spec(document: Mapping[str, Any]) -> KVCacheTierSpec | None:
    try:
        return parse_tier(document).spec
    except InvalidTier:
        return None


def _served(document: Mapping[str, Any]) -> str | None:
    """The live generation by the tier's status, None if it has none yet."""
    status = document.get("status")
    generations = status.get("generations") if isinstance(status, Mapping) else None
    for entry in generations if isinstance(generations, list) else ():
        if isinstance(entry, Mapping) and entry.get("state") == GenerationState.LIVE.value:
            return str(entry.get("id"))
    return None
