"""``kvtier status`` against a server that has one tier."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import kvtier, one_line
from status_bodies import SEEN, condition, engine, lease, tier

Body = dict[str, Any]
NewConfig = Callable[..., Path]


def test_one_screen_has_the_verdict_the_figures_and_the_ranks(kubeconfig: NewConfig) -> None:
    done = kvtier("status", "chat", "--kubeconfig", kubeconfig(tier()))
    assert done.returncode == 0, done.stderr
    shown = done.stdout.decode()
    assert shown.splitlines() == [
        "Tier serving/chat: org/model, KV in bfloat16, 2 ranks, striping Hash",
        "Ready: 2/2 ranks, generation 0123456789ab (Live)",
        "",
        "Verdict: Pays",
        "  A hit is faster. It needs 1.64 GB/s.",
        "",
        "  KV of one chunk  80 MiB",
        "  break-even (B*)  13.1 Gb/s",
        "  link             25.6 Gb/s, round trip 0.2 ms, 1.95 x break-even",
        f"  known from       a probe from node-3, 4 h ago ({SEEN})",
        "  minimum hit      2,400 tokens",
        "  ranks belong in  zone=zone-a",
        "  engine Secret    chat-engine-0123456789ab",
        "",
        "  RANK  WHERE            READY",
        "  0     node-1 (zone-a)  yes",
        "  1     node-2           yes",
        "",
        "  GENERATION    STATE",
        "  0123456789ab  Live",
        "  Who uses them is not known: that takes the right to list pods in namespace serving.",
        "",
        "Findings: none",
        "",
        "Last changes",
        "  Events are not known: that takes the right to list events in namespace serving.",
        "",
        "Next: Nothing to do.",
    ]


def test_a_rate_that_engines_show_is_named_as_theirs(kubeconfig: NewConfig) -> None:
    figures = {"chunkBytes": 1, "bytesPerSecond": 1, "observedTokensPerSecond": 8000}
    done = kvtier("status", "chat", "--kubeconfig", kubeconfig(tier(breakEven=figures)))
    shown = done.stdout.decode()
    assert "engines prefill  8,000 tokens/s, by the engines' own metrics" in shown


def test_a_minimum_hit_names_the_longer_ones_that_lose(kubeconfig: NewConfig) -> None:
    lengths = {256: False, 4096: True, 32_768: False, 65_536: False}
    figures = {
        "chunkBytes": 1,
        "bytesPerSecond": 1,
        "minimumHitTokens": 400,
        "perLength": [{"tokens": tokens, "wins": wins} for tokens, wins in lengths.items()],
    }
    done = kvtier("status", "chat", "--kubeconfig", kubeconfig(tier(breakEven=figures)))
    assert b"minimum hit      400 tokens; hits of 32,768, 65,536 lose again\n" in done.stdout


def findings(shown: bytes) -> list[str]:
    lines = shown.decode().splitlines()
    return lines[lines.index("Findings") + 1 : lines.index("Last changes") - 1]


def test_findings_are_told_one_by_one_and_errors_come_first(kubeconfig: NewConfig) -> None:
    conditions = [
        condition("GenerationCurrent", "Unknown", "NotPublished", "later"),
        condition("StoreReady", "False", "RanksNotReady", "rank 1: no place"),
        condition("PlacementAccepted", "False", "NoPromptLongEnough", "10,001 tokens. Also in ..."),
        condition("Ready", "False", "NotReady", "see the others"),
    ]
    found = [
        {
            "severity": "Error",
            "reason": "NoPromptLongEnough",
            "message": "10,001 tokens.",
            "blocks": True,
        },
        {"severity": "Warning", "reason": "ChunksUneven", "message": "1.8"},
    ]
    body = tier(conditions=conditions, findings=found)
    done = kvtier("status", "chat", "--kubeconfig", kubeconfig(body))
    assert done.returncode == 1
    assert done.stdout.decode().splitlines()[1].startswith("Not ready: 2/2 ranks")
    assert findings(done.stdout) == [
        "  Error RanksNotReady",
        "    rank 1: no place",
        "  Error NoPromptLongEnough, refused with onReject: Block",
        "    10,001 tokens.",
        "  Warning NotPublished",
        "    later",
        "  Warning ChunksUneven",
        "    1.8",
    ]


def test_a_refused_edit_comes_before_the_findings_of_the_spec_before(
    kubeconfig: NewConfig,
) -> None:
    body = tier(findings=[{"severity": "Error", "reason": "BelowBreakEven", "message": "old"}])
    body["status"]["conditions"] = [
        condition("PlacementAccepted", "False", "BelowBreakEven", "old"),
        condition("EarningItsKeep", "True", "Pays", "old"),
        condition("SpecValid", "False", "InvalidSpec", "spec.store: no"),
        condition("Ready", "False", "NotReady", "SpecValid is False"),
    ]
    done = kvtier("status", "chat", "--kubeconfig", kubeconfig(body))
    assert findings(done.stdout)[:3] == [
        "  Error InvalidSpec",
        "    spec.store: no",
        "  Error BelowBreakEven",
    ]
    assert (
        b"\nThe spec is refused: verdict, figures and other findings are of before" in done.stdout
    )


def test_a_tier_that_was_never_accepted_has_no_empty_table(kubeconfig: NewConfig) -> None:
    body = tier()
    body["status"] = {
        "observedGeneration": 1,
        "conditions": [
            condition("SpecValid", "False", "InvalidSpec", "spec.store: no"),
            condition("Ready", "False", "NotReady", "SpecValid is False"),
        ],
    }
    done = kvtier("status", "chat", "--kubeconfig", kubeconfig(body))
    assert done.stdout.decode().splitlines()[1:] == [
        "Not ready: no ranks",
        "",
        "Verdict: Unknown (InvalidSpec)",
        "  The spec is refused: nothing is made or judged.",
        "",
        "Findings",
        "  Error InvalidSpec",
        "    spec.store: no",
        "",
        "Last changes",
        "  Events are not known: that takes the right to list events in namespace serving.",
        "",
        "Next: Correct the fields that the message names; `kvtier plan -f FILE` checks a file",
        "  beforehand.",
        "  docs/runbooks.md#invalidspec",
    ]


def test_a_lower_bound_and_a_declared_link_are_told_as_what_they_are(
    kubeconfig: NewConfig,
) -> None:
    least = tier()["status"]["measured"] | {"lowerBound": True}
    done = kvtier("status", "chat", "--kubeconfig", kubeconfig(tier(measured=least)))
    assert b"  link             at least 25.6 Gb/s, round trip 0.2 ms" in done.stdout
    declared = {"bytesPerSecond": 3200000000, "evidence": "Declared"}
    done = kvtier("status", "chat", "--kubeconfig", kubeconfig(tier(measured=declared)))
    lines = done.stdout.decode().splitlines()
    assert "  link             25.6 Gb/s" in lines
    assert "  known from       the spec, not measured" in lines


def test_a_paused_tier_is_told_of(kubeconfig: NewConfig) -> None:
    body = tier()
    body["spec"]["paused"] = True
    done = kvtier("status", "chat", "--kubeconfig", kubeconfig(body))
    assert done.stdout.decode().splitlines()[2].startswith("Paused: ")


def test_a_status_of_an_earlier_spec_is_not_ready(kubeconfig: NewConfig) -> None:
    done = kvtier("status", "chat", "--kubeconfig", kubeconfig(tier(generation=2)))
    assert done.returncode == 1
    assert b"The spec has changed since" in done.stdout


def test_a_tier_without_a_status_says_where_to_look(kubeconfig: NewConfig) -> None:
    body = tier()
    del body["status"]
    done = kvtier("status", "chat", "--kubeconfig", kubeconfig(body))
    assert done.returncode == 1
    assert b"The operator has written no status yet" in done.stdout


def test_the_document_is_the_status_under_its_own_names(kubeconfig: NewConfig) -> None:
    body = tier()
    done = kvtier("status", "chat", "-o", "json", "--kubeconfig", kubeconfig(body))
    found = json.loads(done.stdout)
    assert found == {
        "name": "chat",
        "namespace": "serving",
        "ready": True,
        "controllerActive": True,
        **body["status"],
        "poolPods": None,
        "events": None,
        "next": {"text": "Nothing to do."},
    }


@pytest.mark.parametrize(
    "where", [("-n", "elsewhere"), ("--context", "bare")], ids=["namespace", "context"]
)
def test_a_tier_that_is_not_there_is_one_line(kubeconfig: NewConfig, where: tuple[str]) -> None:
    config = kubeconfig(tier())
    said = one_line(kvtier("status", "chat", *where, "--kubeconfig", config))
    namespace = "elsewhere" if "elsewhere" in where else "default"
    assert said == f"KVCacheTier {namespace}/chat: not found; see kubectl get kvt -A"


def test_a_server_that_is_away_is_one_line(kubeconfig: NewConfig, tmp_path: Path) -> None:
    config = kubeconfig(None)
    away = tmp_path / "away"
    away.write_text(config.read_text().replace("127.0.0.1:", "127.0.0.1:1#"))
    said = one_line(kvtier("status", "chat", "--kubeconfig", away))
    assert "cannot be reached" in said
    assert said.endswith("check the kubeconfig and its context")


@pytest.mark.parametrize("argument", ["--kubeconfig", "--context"])
def test_a_kubeconfig_or_context_that_is_not_there_is_one_line(
    kubeconfig: NewConfig, argument: str, tmp_path: Path
) -> None:
    config = tmp_path / "none" if argument == "--kubeconfig" else kubeconfig(None)
    more = ("--context", "none") if argument == "--context" else ()
    said = one_line(kvtier("status", "chat", "--kubeconfig", config, *more))
    assert said.startswith("kubeconfig ")
    assert "none" in said


AWAY, OLD = "No controller runs", "All of this is old"
LEASE = "Lease kvtier-system/kvtier"


@pytest.mark.parametrize(
    ("leases", "hint"),
    [
        ([], f"{AWAY}: there is no Lease of one in this cluster. {OLD}"),
        ([{"holder": None}], f"{AWAY}: {LEASE} is held by nobody. {OLD}"),
        ([{"renewed": 301}], f"{AWAY}: {LEASE} was renewed 5 min ago. {OLD}"),
        ([{"renewed": 301}, {"renewed": 9}], None),
        ([{"renewed": 20}], f"The controller is late: {LEASE} was renewed 20 s ago"),
    ],
    ids=["none", "released", "not renewed", "one of two", "late"],
)
def test_a_controller_that_is_away_is_told_of_in_one_line(
    kubeconfig: NewConfig, leases: list[Body], hint: str | None
) -> None:
    config = kubeconfig(tier(), [lease(**each) for each in leases])
    lines = kvtier("status", "chat", "--kubeconfig", config).stdout.decode().splitlines()
    assert lines[1].startswith("Ready: 2/2 ranks")
    # A moment goes by on the way.
    assert re.sub(r" 2[1-9] s", " 20 s", lines[2]) == (hint or "")
    found = json.loads(kvtier("status", "chat", "-o", "json", "--kubeconfig", config).stdout)
    assert found["controllerActive"] is (OLD not in (hint or ""))


def test_who_may_read_leases_in_kvtiers_namespace_alone_is_told_by_those(
    kubeconfig: NewConfig,
) -> None:
    config = kubeconfig(tier(), [lease(holder=None)], "/namespaces/kvtier-system/leases")
    assert b"No controller runs" in kvtier("status", "chat", "--kubeconfig", config).stdout


def test_who_may_read_no_lease_is_told_that_it_is_not_known(kubeconfig: NewConfig) -> None:
    config = kubeconfig(tier(), [], "")
    shown = kvtier("status", "chat", "--kubeconfig", config).stdout.decode()
    assert "\nWhether a controller runs is not known: that takes the right to list leases" in shown
    found = json.loads(kvtier("status", "chat", "-o", "json", "--kubeconfig", config).stdout)
    assert found["controllerActive"] is None


def test_a_link_that_nobody_measured_is_told_as_that_and_one_rank_is_one(
    kubeconfig: NewConfig,
) -> None:
    body = tier()
    del body["status"]["measured"]
    body["spec"]["pool"]["ranks"] = 1
    lines = kvtier("status", "chat", "--kubeconfig", kubeconfig(body)).stdout.decode().splitlines()
    assert "  link             not measured" in lines
    assert ", 1 rank, striping" in lines[0]


def test_who_uses_a_generation_is_read_from_the_pool_and_its_config_maps(
    kubeconfig: NewConfig,
) -> None:
    pods = [engine("a", "--revision", "$(REVISION)"), engine("b")]
    pods.append(engine("c", generation="0" * 12))
    pods[1]["status"]["phase"] = "Succeeded"
    config = kubeconfig(tier(), pods=pods, config_maps={"settings": {"REVISION": "r7"}})
    done = kvtier("status", "chat", "--kubeconfig", config)
    assert done.returncode == 0, done.stderr
    shown = done.stdout.decode()
    assert "  GENERATION    STATE  READY PODS\n  0123456789ab  Live   1 of 1\n" in shown
    assert "    Used by a.\n" in shown
    found = json.loads(kvtier("status", "chat", "-o", "json", "--kubeconfig", config).stdout)
    assert [each["name"] for each in found["poolPods"]] == ["a", "c"]
    assert found["poolPods"][0] | {"unreadable": {}} == {
        "name": "a",
        "ready": True,
        "generations": ["0123456789ab"],
        "differs": [],
        "unreadable": {},
    }
