"""The reference client in a pod, with nothing but the published Secret."""

import json

from livecluster import loadtest
from livecluster.fixtures import NewTier
from livecluster.tier import Tier
from livecluster.waiting import eventually

LOAD = ("--engines", "2", "--rate", "4", "--prompt-tokens", "2048", "--prefixes", "1")
SHARE = 0.75
"""1,536 of each prompt's 2,048 tokens are the beginning: six chunks of 64 KiB on either rank."""
SECONDS = 4.0
# A slow link has long timeouts: a busy machine is no outage.
SPEC = {"placement": {"links": [{"domain": "zone", "bitsPerSecond": "1M", "roundTrip": "1ms"}]}}


def ready(tier: Tier) -> Tier:
    tier.wait_ready()
    tier.engine()
    return tier


def fill(tier: Tier) -> None:
    """Until the beginning is stored on every rank."""
    run = loadtest.start(tier, *LOAD, seconds=60, name="fill")
    eventually(
        lambda: any(second["hitRate"] == SHARE for second in run.progress()),
        seconds=60,
        what="hits of the whole beginning",
        detail=run.progress,
    )
    run.stop()
    assert run.exit_code() == 0


def test_two_engines_hit_what_they_share_and_see_no_wrong_byte(new_tier: NewTier) -> None:
    tier = new_tier("chat")
    tier.apply(SPEC)
    fill(ready(tier))
    run = loadtest.start(tier, *LOAD, seconds=SECONDS)
    report = run.report()
    assert run.exit_code() == 0
    assert report["wrong"] == {"corrupt": 0, "foreign": 0, "stale": 0}
    assert report["outages"] == []
    assert report["completed"] > 0
    assert report["hitRate"] == SHARE
    assert report["bytes"]["read"] >= report["completed"] * 6 * 2 * 65536
    assert report["endedBy"] == "Duration"


def test_the_credentials_of_another_tier_read_and_write_nothing(new_tier: NewTier) -> None:
    chat, other = new_tier("chat"), new_tier("other")
    for tier in (chat, other):
        tier.apply(SPEC)
    fill(ready(chat))
    ready(other)
    run = loadtest.start(chat, *LOAD, seconds=SECONDS, name="denied", secret=_mixed(chat, other))
    report = run.report()
    assert run.exit_code() == 1
    assert report["bytes"] == {"read": 0, "written": 0}
    assert report["tokens"]["hit"] == 0
    outages = {(outage["rank"], outage["kind"]) for outage in report["outages"]}
    assert outages == {(0, "denied"), (1, "denied")}


def _mixed(chat: Tier, other: Tier) -> str:
    """A Secret with the addresses of one tier and the credentials of another."""
    files = chat.secret(chat.body()["status"]["engineSecret"])
    stolen = json.loads(other.secret(other.body()["status"]["engineSecret"])["connection.json"])
    connection = json.loads(files["connection.json"])
    connection |= {name: stolen[name] for name in ("username", "password")}
    chat.cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "mixed", "namespace": chat.namespace},
            "stringData": {"connection.json": json.dumps(connection)},
        }
    )
    return "mixed"
