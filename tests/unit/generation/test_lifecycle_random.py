"""Anything in any order: specs, pods, ranks, time and restarts. The world asserts what may never
be, at every look."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from lifecycle_world import RANKS, Tier

from kvtier.api.rollout import OnPoolDrift, Revocation

REVISIONS = st.sampled_from(("r1", "r2", "r3"))
NAMES = st.sampled_from(("a", "b", "c"))
SOME_RANK = st.sampled_from(RANKS)


class Lifecycle(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tier = Tier()

    @rule(revision=REVISIONS, salt=st.sampled_from(("1", "1", "2")))
    def name_another_identity(self, revision: str, salt: str) -> None:
        self.tier.wanted = (revision, salt)
        self.tier.look()

    @rule(policy=st.sampled_from(OnPoolDrift))
    def set_drift_policy(self, policy: OnPoolDrift) -> None:
        self.tier.set_policy(on_pool_drift=policy)

    @rule(timeout=st.sampled_from((0.0, 20.0, 60.0, 600.0)))
    def set_timeout(self, timeout: float) -> None:
        self.tier.set_policy(drain_timeout=timeout)

    @rule(revocation=st.sampled_from(Revocation))
    def want_new_credentials(self, revocation: Revocation) -> None:
        self.tier.set_policy(
            revocation=revocation, credential_epoch=self.tier.policy.credential_epoch + 1
        )

    @rule()
    def pause_or_go_on(self) -> None:
        self.tier.set_policy(paused=not self.tier.policy.paused)

    @rule(name=NAMES, revision=REVISIONS, which=st.integers(-1, 3), ready=st.booleans())
    def start_pod(self, name: str, revision: str, which: int, ready: bool) -> None:
        ids = [entry.id for entry in self.tier.record.generations]
        mounts = ids[which] if 0 <= which < len(ids) else None
        self.tier.run(name, revision=revision, mounts=mounts, ready=ready)

    @rule(name=NAMES)
    def start_right_pod(self, name: str) -> None:
        current = self.tier.record.current
        assert current.identity is not None
        self.tier.run(name, revision=current.identity["revision"], mounts=current.id)

    @rule(name=NAMES)
    def end_pod(self, name: str) -> None:
        self.tier.pods.pop(name, None)

    @rule()
    def all_pods_store(self) -> None:
        for name in self.tier.pods:
            self.tier.write(name)

    @rule(rank=SOME_RANK)
    def restart_rank(self, rank: int) -> None:
        """With the file that was delivered last, and pods store before the operator comes."""
        self.tier.servers[rank].restart()
        self.all_pods_store()

    @rule(rank=SOME_RANK)
    def deliver(self, rank: int) -> None:
        self.tier.deliver(rank)

    @rule(rank=SOME_RANK, load=st.booleans())
    def tell(self, rank: int, load: bool) -> None:
        self.tier.tell(rank, load=load)

    @rule(rank=SOME_RANK)
    def purge(self, rank: int) -> None:
        self.tier.purge(rank)

    @rule(rank=SOME_RANK)
    def count_sessions(self, rank: int) -> None:
        self.tier.count_sessions(rank)

    @rule(seconds=st.sampled_from((0.0, 0.0, 1.0, 10.0, 30.0, 4000.0, -5.0)))
    def look(self, seconds: float) -> None:
        self.tier.look(seconds)

    @rule()
    def look_and_be_stopped(self) -> None:
        self.tier.look(1.0, written=False)

    @rule()
    def restart_operator(self) -> None:
        self.tier.start()

    @rule()
    def everybody_works(self) -> None:
        self.tier.settle()

    @invariant()
    def fences_hold_where_they_are_proven(self) -> None:
        self.tier.check_servers()


TestLifecycle = Lifecycle.TestCase
TestLifecycle.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
