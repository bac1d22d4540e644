"""What breaks a tier, its engines, or who looks after them, until a block ends."""

import os
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import timedelta
from typing import Final

import valkey

from certificates import Ca, secret
from livecluster.alert_faults import Harm, repeated
from livecluster.cluster import LiveCluster
from livecluster.faults import Faults, stopped_processes
from livecluster.installation import NAMESPACE, Installation
from livecluster.monitoring import Monitoring
from livecluster.probing import ask, engine_on
from livecluster.ranks import Engine
from livecluster.stand_in_engine import engine_deleted, engine_pod, runs
from livecluster.storms import limiter_addresses
from livecluster.tier import Patch, Tier

MIB: Final = b"\0" * (1 << 20)
CA = Ca()


def hangs(live: LiveCluster) -> Harm:
    """Rank 1 answers nothing."""

    @contextmanager
    def harm(tier: Tier) -> Iterator[None]:
        with stopped_processes([Faults(live).server_pid(tier.containers()[1])]):
            yield

    return harm


def killed_again_and_again(live: LiveCluster, watched: Monitoring) -> Harm:
    """Rank 0 is killed, and again whenever kvtier has seen that it started, until the block ends:
    of two starts between two looks it would see one."""

    @contextmanager
    def harm(tier: Tier) -> Iterator[None]:
        of_tier = f'namespace="{tier.namespace}", tier="{tier.name}"'
        seen = f'kvtier_rank_restarts_total{{{of_tier}, rank="0"}}'
        kills = 0

        def kill() -> None:
            nonlocal kills
            (starts,) = watched.query(seen)
            if starts.value == kills:
                os.kill(Faults(live).server_pid(tier.containers()[0]), signal.SIGKILL)
                kills += 1

        with repeated(kill, every=1.0):
            yield

    return harm


def patched(spec: Patch, back: Patch) -> Harm:
    @contextmanager
    def harm(tier: Tier) -> Iterator[None]:
        tier.patch(spec)
        yield
        tier.patch(back)

    return harm


@contextmanager
def users_deleted(tier: Tier) -> Iterator[None]:
    """Somebody deletes the operator's user of a running rank; its pod is deleted to mend it."""
    token = tier.secret(f"{tier.name}-operator")["token"]
    engine = tier.engine()
    # The reply may not come: the session's own user is gone.
    with (
        engine.connect(0, username="operator", password=token) as session,
        suppress(valkey.exceptions.ConnectionError),
    ):
        session.execute_command("ACL", "SETUSER", "operator", "resetpass", ">another")
        session.execute_command("CLIENT", "KILL", "USER", "operator", "SKIPME", "no")
    yield
    tier.kubectl("delete", "pod", f"{tier.name}-r0-0", "--wait=false")


@contextmanager
def knocked_at(tier: Tier) -> Iterator[None]:
    """Somebody tries a token that no rank knows."""
    engine = tier.engine()

    def knock() -> None:
        with (
            suppress(valkey.exceptions.ValkeyError),
            engine.connect(0, username="nobody", password="wrong") as session,
        ):
            session.ping()

    with repeated(knock, every=0.5):
        yield


@contextmanager
def churned(tier: Tier) -> Iterator[None]:
    """More is stored all the time than the tier has room for."""
    engine, count = tier.engine(), iter(range(1_000_000))

    def write() -> None:
        number = next(count)
        for rank in engine.ranks:
            put(engine, rank, number)

    with repeated(write, every=0.25):
        yield


@contextmanager
def lopsided(tier: Tier) -> Iterator[None]:
    """Rank 0 is filled, and rank 1 only to mend it."""
    engine = tier.engine()
    for number in range(60):
        put(engine, 0, number)
    yield
    for number in range(60):
        put(engine, 1, number)


@contextmanager
def one_rank_read(tier: Tier) -> Iterator[None]:
    """Values of one rank are read all the time."""
    engine = tier.engine()
    put(engine, 0, 0)

    def read() -> None:
        with engine.session(0) as session:
            for _ in range(4):
                session.get(f"{engine.prefix(0)}@filler@0")

    with repeated(read, every=0.25):
        yield


def put(engine: Engine, rank: int, number: int) -> None:
    """A value of 1 MiB, as the engine's user."""
    with engine.session(rank) as session:
        session.set(f"{engine.prefix(rank)}@filler@{number}", MIB)


@contextmanager
def fought_over(tier: Tier) -> Iterator[None]:
    """Something sets a field of a Service of the tier to another value, again and again."""
    name, ports = f"{tier.name}-r0", [{"name": "valkey", "port": 6379, "targetPort": 1}]

    def edit() -> None:
        tier.cluster.api.patch("services", tier.namespace, name, {"spec": {"ports": ports}})

    with repeated(edit, every=0.2):
        yield


def engine(*, revision: str = "", with_secret: bool, readable: bool = True) -> Harm:
    """Such an engine comes, and goes again at the end."""

    @contextmanager
    def harm(tier: Tier) -> Iterator[None]:
        secret = tier.body()["status"]["engineSecret"] if with_secret else ""
        arguments = runs(tier, revision=revision) if readable else None
        engine_pod(tier, arguments=arguments, secret=secret)
        yield
        engine_deleted(tier)

    return harm


@contextmanager
def short_lived(tier: Tier) -> Iterator[None]:
    """The certificate in the Secret is one of twelve hours, and renewed at the end."""
    renew(tier, timedelta(hours=12))
    yield
    renew(tier, timedelta(days=90))


def renew(tier: Tier, end: timedelta) -> None:
    pair = CA.issue(f"*.{tier.namespace}.svc", end=end)
    tier.cluster.apply(secret("tls", pair, ca=CA.pem, namespace=tier.namespace))
    for pod in tier.pods().values():
        # A kubelet looks after the Secrets of a pod that was changed, and else within two minutes.
        name = pod["metadata"]["name"]
        tier.kubectl("annotate", "pod", name, f"renewed={end.days}", "--overwrite")


@contextmanager
def resalted(tier: Tier) -> Iterator[None]:
    """Its engine stays behind on a generation that is fenced at once."""
    tier.patch({"model": {"salt": "weights of today"}})
    yield
    engine_deleted(tier)


def with_engine(tier: Tier) -> None:
    """That runs what the tier declares, with its Secret."""
    engine_pod(tier, arguments=runs(tier), secret=tier.body()["status"]["engineSecret"])


@contextmanager
def without_jobs(tier: Tier) -> Iterator[None]:
    """A quota lets no probe run."""
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "no-jobs", "namespace": tier.namespace},
        "spec": {"hard": {"count/jobs.batch": "0"}},
    }
    tier.cluster.apply(quota)
    engine_on(tier, "node-2")
    yield
    tier.kubectl("delete", "resourcequota", "no-jobs")
    ask(tier)


def scaled(release: Installation, what: str, *, back: int) -> AbstractContextManager[None]:
    scale = ("scale", f"deployment/{what}", "-n", NAMESPACE)

    @contextmanager
    def harm() -> Iterator[None]:
        release.cluster.kubectl(*scale, "--replicas=0")
        yield
        release.cluster.kubectl(*scale, f"--replicas={back}")

    return harm()


@contextmanager
def asked_wrongly(release: Installation) -> Iterator[None]:
    """A gateway asks limiters about a tier that there is not."""
    addresses = limiter_addresses(release.cluster)

    def ask_once() -> None:
        for address in addresses:
            with (
                suppress(OSError),
                urllib.request.urlopen(
                    f"http://{address}:8080/v1/admit/nobody/nothing", data=b"", timeout=3
                ),
            ):
                pass

    with repeated(ask_once, every=1.0):
        yield


@contextmanager
def without_right(tier: Tier) -> Iterator[None]:
    """The controller may not write Services any more, and has to."""
    role = "kvtier-tiers"
    rules = tier.cluster.kubectl("get", "clusterrole", role, "-o", "json")
    narrowed = rules.replace('"services",', "").replace('"services"', '"nothing"')
    tier.cluster.kubectl("replace", "-f", "-", stdin=narrowed)
    tier.kubectl("delete", "service", f"{tier.name}-r0")
    yield
    tier.cluster.kubectl("replace", "--force", "-f", "-", stdin=rules)
