"""A tier's generations, as its status and its ranks show them."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvtier.api.load import parse_tier
from kvtier.generation.identity import generation_id
from livecluster.fleet import TIER_SPEC
from livecluster.tier import Patch, Tier, manifest, merged
from livecluster.waiting import eventually

FENCED_SECONDS = 120.0
"""The kubelet brings the users' file within its sync period, of a minute and a half at most."""


def rolled(spec: Patch, *, drain: str = "10s", **rollout: object) -> dict[str, Any]:
    """A fleet's tier with these changes, whose old generation drains quickly."""
    quick = {"rollout": {"drainTimeout": drain, **rollout}}
    found: dict[str, Any] = merged(merged(TIER_SPEC, quick), spec)
    return found


@dataclass(frozen=True, slots=True)
class Generations:
    """Those of one tier."""

    tier: Tier

    def id_of(self, spec: Patch) -> str:
        """The generation that the tier would have with this spec."""
        body = manifest(name=self.tier.name, namespace=self.tier.namespace, spec=spec)
        body["metadata"]["uid"] = "none"
        return generation_id(parse_tier(body).spec)

    def rows(self) -> dict[str, Mapping[str, Any]]:
        status = self.tier.body().get("status") or {}
        return {each["id"]: each for each in status.get("generations", ())}

    def state(self, generation: str) -> str:
        return str(self.rows().get(generation, {}).get("state", "gone"))

    def wait(self, generation: str, *states: str, seconds: float) -> float:
        """Until it is in one of these states (``gone`` if it is none); seconds waited."""
        began = time.monotonic()
        eventually(
            lambda: self.state(generation) in states,
            seconds=seconds,
            what=f"generation {generation} is {' or '.join(states)}",
            detail=self.rows,
        )
        return time.monotonic() - began

    def hand_on(self) -> None:
        """Have the kubelets bring the ranks their new users file now, and not within two minutes:
        a kubelet looks after the Secrets of a pod that was changed."""
        now = f"kvtier.dev/test-synced={time.time()}"
        pods = ("pods", "-l", f"kvtier.dev/tier-name={self.tier.name}")
        self.tier.kubectl("annotate", *pods, "--overwrite", now)

    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.tier.secret(f"{self.tier.name}-acl")["record.json"])
        return found

    def keys(self, generation: str) -> dict[int, int]:
        """By rank: the keys of a generation that it holds, by a scan of its own."""
        engine = self.tier.engine()
        operator = self.tier.secret(f"{self.tier.name}-operator")["token"]
        found = {}
        for rank in engine.ranks:
            with engine.connect(rank, username="operator", password=operator) as session:
                pattern = f"kvt-{generation}-r{rank}@*"
                found[rank] = sum(1 for _ in session.scan_iter(match=pattern, count=1000))
        return found

    def reaches(self, generation: str, token: str) -> dict[int, bool]:
        """By rank: whether the user with this token may read a key of the generation."""
        engine = self.tier.engine()
        operator = self.tier.secret(f"{self.tier.name}-operator")["token"]
        found = {}
        for rank in engine.ranks:
            key = f"kvt-{generation}-r{rank}@x"
            with engine.connect(rank, username="operator", password=operator) as session:
                users = session.execute_command("ACL", "USERS")
                known = token.encode() in users or token in users
                answer = known and session.execute_command("ACL", "DRYRUN", token, "get", key)
                found[rank] = answer in (b"OK", "OK")
        return found
