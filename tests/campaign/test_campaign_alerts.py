"""Faults that alerts tell of: caused for real, told to a receiver, and over after the repair.

A real Prometheus evaluates the chart's rules; every ``for`` is two seconds, and ranges are shorter.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest

from certificates import secret
from livecluster.alert_faults import Fault, play
from livecluster.alert_harms import (
    CA,
    asked_wrongly,
    churned,
    engine,
    fought_over,
    hangs,
    killed_again_and_again,
    knocked_at,
    lopsided,
    one_rank_read,
    patched,
    resalted,
    scaled,
    short_lived,
    users_deleted,
    with_engine,
    without_jobs,
    without_right,
)
from livecluster.cluster import LiveCluster
from livecluster.faults import Faults
from livecluster.fixtures import NewTier, tiers
from livecluster.installation import Installation
from livecluster.monitoring import Monitoring, monitoring
from livecluster.storms import limiter_pods
from livecluster.tier import Tier
from livecluster.waiting import eventually
from programs import CannotStart, go_program

PROMETHEUS = "github.com/prometheus/prometheus@v0.316.0"
PROMETHEUS_SUM = "h1:f1GRFerhTMKQma+awCoC9T820ecWeGSdF+xAlMHzZzM="
WITH_KUBERNETES_SD = "remove_all_sd,enable_kubernetes_sd"
WINDOWS = {"5m": "30s", "10m": "30s", "15m": "3m", "1h": "4m"}
RESYNC = 10
LIMITED = ("limiter.enabled=true", "limiter.resources.requests.cpu=50m")
LOAD = {
    "promptTokens": [{"quantile": "0.5", "tokens": 4096}],
    "hitTokens": [{"quantile": "0.5", "tokens": 2048}],
    "hitRate": "0.5",
    "requestsPerSecond": "1000",
}

pytestmark = pytest.mark.timeout(1500)


@pytest.fixture(scope="module")
def release(kvtier: Installation) -> Iterator[Installation]:
    """With limiters, and with a resync that a test can wait for."""
    settings = (f"controller.resync={RESYNC}s", *LIMITED)
    kvtier.install(*(f"--set={setting}" for setting in settings))
    eventually(lambda: len(limiter_pods(kvtier.cluster)) == 2, seconds=120, what="two limiters")
    yield kvtier
    kvtier.install()


@pytest.fixture(scope="module")
def watched(
    live: LiveCluster, release: Installation, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Monitoring]:
    directory = tmp_path_factory.mktemp("prometheus")
    try:
        program = go_program(
            "prometheus",
            module=PROMETHEUS,
            checksum=PROMETHEUS_SUM,
            tags=WITH_KUBERNETES_SD,
            given="KVTIER_PROMETHEUS",
        )
    except CannotStart as reason:
        pytest.exit(str(reason), returncode=2)
    with monitoring(live, directory, windows=WINDOWS, settings=LIMITED, program=program) as found:
        yield found


def made(faults: list[Fault], new_tier: NewTier) -> dict[str, Tier]:
    """A Ready tier for each, with whatever the fault needs beforehand."""
    found = {fault.name: new_tier(fault.name) for fault in faults}
    for fault in faults:
        found[fault.name].apply(fault.spec)
    for fault in faults:
        found[fault.name].wait_ready(seconds=180)
        if fault.prepare:
            fault.prepare(found[fault.name])
    return found


def test_faults_of_ranks(watched: Monitoring, live: LiveCluster, new_tier: NewTier) -> None:
    faults = [
        Fault(
            "hangs",
            "a rank hangs (SIGSTOP)",
            [("KVTierRankDown", {"rank": "1"})],
            hangs(live),
            "goes on (SIGCONT)",
        ),
        Fault(
            "restarts",
            "a rank is killed whenever it is back (SIGKILL)",
            [("KVTierRankRestarting", {"rank": "0"})],
            killed_again_and_again(live, watched),
            "is left alone",
        ),
        Fault(
            "image",
            "an image that there is not",
            [("KVCacheTierNotReady", {})],
            patched({"store": {"image": "docker.io/nobody/nothing:1"}}, {"store": {"image": None}}),
            "edited back",
        ),
        Fault(
            "users",
            "the operator's token changed on a running rank (ACL SETUSER)",
            [("KVTierSettingsNotApplied", {})],
            users_deleted,
            "the rank's pod deleted",
        ),
        Fault(
            "knocked",
            "a client with a wrong token, twice a second",
            [("KVTierAccessDenied", {"reason": "auth"})],
            knocked_at,
            "the client ends",
        ),
    ]
    play(watched, faults, made(faults, new_tier))


def test_faults_of_use(watched: Monitoring, new_tier: NewTier) -> None:
    faults = [
        Fault(
            "churns",
            "stored without end, 4 MiB/s on ranks of 64 MiB",
            [("KVTierEvictionChurn", {})],
            churned,
            "the client ends",
        ),
        Fault(
            "lopsided",
            "60 MiB stored on one rank only",
            [("KVTierRankSkew", {})],
            lopsided,
            "as much on the other",
        ),
        Fault(
            "hotspot",
            "one rank read at up to 16 MiB/s, the other not",
            [("KVTierHotspot", {"rank": "0"})],
            one_rank_read,
            "the client ends",
        ),
        Fault(
            "overloaded",
            "a workload declared that no pool of its size can take",
            [("KVTierPlacementRefused", {}), ("KVTierUndersizedForZeroHit", {})],
            patched({"workload": LOAD}, {"workload": None}),
            "edited back",
            prepare=with_engine,
        ),
        Fault(
            "unread",
            "an engine that serves no metrics",
            [("KVTierEnginesUnread", {})],
            engine(with_secret=True),
            "the engine deleted",
        ),
        Fault(
            "paused",
            "paused",
            [("KVTierPaused", {})],
            patched({"paused": True}, {"paused": False}),
            "not paused",
        ),
    ]
    play(watched, faults, made(faults, new_tier))


def test_faults_of_identity(watched: Monitoring, new_tier: NewTier, live: LiveCluster) -> None:
    certified = new_tier("certified")
    renew_first = CA.issue(f"*.{certified.namespace}.svc", end=timedelta(days=90))
    live.apply(secret("tls", renew_first, ca=CA.pem, namespace=certified.namespace))
    faults = [
        Fault(
            "drifted",
            "an engine of another revision, without the Secret",
            [("KVTierPoolDrifted", {})],
            engine(revision="other", with_secret=False),
            "the engine deleted",
        ),
        Fault(
            "contaminated",
            "an engine of another revision with the Secret",
            [("KVTierGenerationContaminated", {})],
            engine(revision="other", with_secret=True),
            "the engine deleted",
        ),
        Fault(
            "unreadable",
            "an engine with the Secret that does not tell what it runs",
            [("KVTierIdentityUnreadable", {})],
            engine(with_secret=True, readable=False),
            "the engine deleted",
        ),
        Fault(
            "fenced",
            "the salt changed under an engine",
            [("KVTierStaleEngines", {})],
            resalted,
            "the engine deleted",
            prepare=with_engine,
        ),
        Fault(
            "certified",
            "a certificate of 12 hours",
            [("KVCacheTierCertificateExpiring", {"severity": "critical"})],
            short_lived,
            "renewed",
            spec={"store": {"tls": {"secretName": "tls"}, "cpu": "300m"}},
        ),
    ]
    play(watched, faults, made(faults, new_tier))


def test_a_fence_that_a_kubelet_holds_up(
    watched: Monitoring, new_tier: NewTier, live: LiveCluster
) -> None:
    @contextmanager
    def without_kubelet(tier: Tier) -> Iterator[None]:
        with Faults(live).stopped(f"kubelet-{tier.pods()[1]['spec']['nodeName']}"):
            tier.patch({"model": {"salt": "weights of today"}})
            yield

    fault = Fault(
        "unproven",
        "the salt changed while a rank's kubelet is stopped",
        [("KVTierFenceNotProven", {})],
        without_kubelet,
        "the kubelet started",
    )
    play(watched, [fault], made([fault], new_tier))


def test_faults_of_who_looks(
    watched: Monitoring, new_tier: NewTier, release: Installation, live: LiveCluster
) -> None:
    with tiers(live, label="unprobed") as poor:
        faults = [
            Fault(
                "unprobed",
                "a quota that lets no probe run",
                [("KVTierNeverProbed", {})],
                without_jobs,
                "the quota deleted, and a probe asked for",
            ),
            Fault(
                "asked",
                "limiters asked about a tier that there is not",
                [("KVTierUnknownRequests", {})],
                lambda tier: asked_wrongly(release),
                "no longer",
                is_tiers=False,
            ),
            Fault(
                "fought-over",
                "a Service edited five times a second",
                [("KVTierHotLoop", {}), ("KVTierConfigDrift", {"kind": "Service"})],
                fought_over,
                "no longer",
                is_tiers=False,
            ),
        ]
        play(
            watched,
            faults,
            made(faults, lambda name: (poor if name == "unprobed" else new_tier)(name)),
        )


def test_limiters_that_are_gone(
    watched: Monitoring, new_tier: NewTier, release: Installation
) -> None:
    faults = [
        Fault(
            "enforces",
            "limiters scaled to 0",
            [("KVTierLimitersAway", {})],
            lambda tier: scaled(release, "kvtier-limiter", back=2),
            "scaled to 2",
            spec={"admission": {"mode": "Enforce"}},
        )
    ]
    play(watched, faults, made(faults, new_tier))


def test_rights_that_are_gone_and_last_the_controller(
    watched: Monitoring, new_tier: NewTier, release: Installation
) -> None:
    forbidden = Fault(
        "forbidden",
        "the role has no right on Services any more, and one is deleted",
        [("KVTierRequestsForbidden", {"kind": "Service"})],
        without_right,
        "the role put back",
        is_tiers=False,
    )
    play(watched, [forbidden], made([forbidden], new_tier))
    gone = Fault(
        "forbidden",
        "the controller scaled to 0",
        [("KVTierOperatorDown", {})],
        lambda tier: scaled(release, "kvtier", back=1),
        "scaled to 1",
        is_tiers=False,
    )
    play(watched, [gone], {"forbidden": new_tier("forbidden")})
