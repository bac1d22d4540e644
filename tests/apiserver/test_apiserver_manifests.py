"""Every manifest of the table against a real API server, and against kvtier's own loader."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from apiserver_manifests import Manifest, manifests
from apiserver_process import Answer, ApiServer
from dry_run import DryRun

from kvtier.api.load import InvalidTier, load_file, parse_tier
from kvtier.breakeven.tier import assess
from kvtier.generation.record import new_record
from kvtier.render.names import RANK_LABEL
from kvtier.render.render import RenderSettings, render

TABLE = manifests()
SINGLE = [manifest for manifest in TABLE if manifest.update is None]
LATER = [manifest for manifest in TABLE if manifest.update is not None]
# kubectl keeps one of two equal keys, and applies several documents one by one: what is stored then
# is no longer what the loader refuses.
ONLY_IN_FILES = {"a key that is there twice", "two documents"}
STORED = [
    manifest for manifest in SINGLE if not manifest.kubectl and manifest.name not in ONLY_IN_FILES
]


def by_name(rows: list[Manifest]) -> Callable[[Any], Any]:
    return pytest.mark.parametrize("manifest", rows, ids=lambda manifest: manifest.name)


@pytest.fixture(scope="session")
def said(apiserver: ApiServer) -> Callable[[Manifest], Answer]:
    """What kubectl answers to a manifest of the table that creates one, asked once."""
    answers = all_at_once(apiserver, STORED)

    def ask(manifest: Manifest) -> Answer:
        if manifest.name not in answers:
            answers[manifest.name] = apiserver.apply(
                manifest.text, "--dry-run=server", "-o", "json"
            )
        return answers[manifest.name]

    return ask


def all_at_once(apiserver: ApiServer, rows: list[Manifest]) -> dict[str, Answer]:
    """What one kubectl answers to manifests that are all taken; nothing if one of them is not."""
    text = "\n---\n".join(row.text for row in rows)
    answer = apiserver.apply(text, "--dry-run=server", "-o", "json")
    if answer.code or answer.err:
        return {}
    taken = json.loads(answer.out)["items"]
    return {
        row.name: Answer(0, json.dumps(each), "") for row, each in zip(rows, taken, strict=True)
    }


def assert_said(manifest: Manifest, answer: Answer) -> None:
    if manifest.kubectl is None:
        assert answer.code == 0, answer.message
    else:
        assert answer.code != 0
        assert manifest.kubectl in answer.message


def test_the_table_has_at_least_60_manifests_and_half_of_them_are_bad() -> None:
    bad = [manifest for manifest in TABLE if manifest.kubectl or manifest.kvtier]
    assert len(TABLE) >= 60
    assert len(bad) * 2 >= len(TABLE)
    assert len({manifest.name for manifest in TABLE}) == len(TABLE)


@by_name(SINGLE)
def test_kubectl_says_what_the_table_says(
    said: Callable[[Manifest], Answer], manifest: Manifest
) -> None:
    assert_said(manifest, said(manifest))


@by_name(LATER)
def test_an_edit_is_taken_or_refused_as_the_table_says(
    apiserver: ApiServer, manifest: Manifest
) -> None:
    assert manifest.update is not None
    created = apiserver.apply(manifest.text)
    assert created.code == 0, created.message
    try:
        assert_said(manifest, apiserver.apply(manifest.update))
    finally:
        apiserver.kubectl("delete", "kvt", "--all")


@by_name(TABLE)
def test_the_loader_says_what_the_table_says(manifest: Manifest, tmp_path: Path) -> None:
    file = tmp_path / "tier.yaml"
    file.write_text(manifest.judged)
    lines = tuple(line.replace(str(file), "FILE") for line in refusal(lambda: load_file(str(file))))
    assert lines == manifest.kvtier


@by_name(STORED)
def test_what_the_server_stored_is_judged_as_what_was_written(
    said: Callable[[Manifest], Answer], manifest: Manifest, tmp_path: Path
) -> None:
    stored = json.loads(said(manifest).out)
    if manifest.kvtier:
        # The condition SpecValid says it; the server's defaults must not change what it says.
        assert refusal(lambda: parse_tier(stored)) == manifest.kvtier
        return
    file = tmp_path / "tier.yaml"
    file.write_text(manifest.text)
    assert parse_tier(stored).spec == load_file(str(file)).spec


@by_name([manifest for manifest in STORED if not manifest.kvtier])
def test_no_accepted_manifest_makes_the_reconciler_raise(
    dry_run: DryRun, said: Callable[[Manifest], Answer], manifest: Manifest
) -> None:
    tier = parse_tier(json.loads(said(manifest).out))
    assess(tier.spec).status()
    record = new_record(tier.spec, operator_token="a" * 32, engine_token="b" * 32)
    children = [
        child
        for child in render(tier, record, settings=RenderSettings())
        if rank_of(child) in (None, 0, tier.spec.pool.ranks - 1)
    ]
    assert [dry_run.refusal(child) for child in children] == [None] * len(children)


def rank_of(child: dict[str, Any]) -> int | None:
    """The rank that a child belongs to; those between the first and the last differ in no rule."""
    rank = child["metadata"]["labels"].get(RANK_LABEL)
    return None if rank is None else int(rank)


def refusal(parse: Callable[[], object]) -> tuple[str, ...]:
    """The lines of what ``parse`` raises, none when it takes the tier."""
    try:
        parse()
    except InvalidTier as refused:
        return refused.errors
    return ()
