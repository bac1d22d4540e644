"""What a run leaves behind, in a form in which two runs can be compared."""

import base64
import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from kills.world import World
from kvtier.cluster.protocol import EVENT, KINDS, LEASE, POD, SECRET, Object
from kvtier.generation.acl import REVISION_USER, acl_revision, users
from kvtier.generation.record import Record, from_json
from kvtier.render.names import RANK_LABEL, RECORD_KEY, TIER_LABEL, acl_name
from kvtier.store.fake_acl import FakeUser
from kvtier.store.protocol import Address

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
TOKEN = re.compile(r"kvtt-[0-9a-f]{48}")
DIGEST = re.compile(r"\b[0-9a-f]{64}\b")
OF_ONE_RUN = ("uid", "resourceVersion", "creationTimestamp")


@dataclass(frozen=True, slots=True)
class Outcome:
    """``objects`` by kind and name, ``settings`` by pod; ``restarts`` are pods made by name,
    ``tokens`` counts tiers by how many of a role they had.

    ``wrong`` is what may never be, whatever another run did.
    """

    objects: dict[str, str]
    settings: dict[str, dict[str, str]]
    restarts: dict[str, int]
    tokens: dict[str, int]
    wrong: tuple[str, ...]

    def difference(self, other: "Outcome") -> str:
        """What this run has otherwise than an undisturbed one, one line each; empty if nothing."""
        lines = list(self.wrong)
        for part in ("objects", "settings", "restarts", "tokens"):
            mine, theirs = getattr(self, part), getattr(other, part)
            lines += [
                f"{part} {name}: {mine.get(name)} instead of {theirs.get(name)}"
                for name in sorted(mine.keys() | theirs.keys())
                if mine.get(name) != theirs.get(name)
            ]
        return "\n".join(lines)


def outcome(world: World) -> Outcome:
    """The world as it is now. What a retry may repeat is left out: Events."""
    objects = [
        obj for kind in KINDS if kind not in (EVENT, LEASE) for obj in world.cluster.all(kind)
    ]
    names = {obj["metadata"]["uid"]: _name(obj) for obj in objects}
    return Outcome(
        objects={_name(obj): _canonical(obj, names) for obj in objects},
        settings={
            pod["metadata"]["name"]: dict(_server(world, pod).config) for pod in _rank_pods(world)
        },
        restarts=dict(world.incarnations),
        tokens=dict(Counter(_token_counts(world))),
        wrong=(
            *_orphans(objects, names),
            *_tokens(world),
            *_users(world),
            *sorted(world.wrong),
        ),
    )


def _name(obj: Object) -> str:
    return f"{obj['kind']} {obj['metadata']['name']}"


def _rank_pods(world: World) -> list[Object]:
    return [pod for pod in world.cluster.all(POD) if RANK_LABEL in pod["metadata"]["labels"]]


def _server(world: World, pod: Object) -> Any:
    return world.stores.servers[Address(host=pod["status"]["podIP"])]


def _canonical(obj: Object, names: dict[str, str]) -> str:
    """The object as text, without what is of one run only; uids are the names of what has them."""
    shown = json.loads(json.dumps(obj))
    for field in OF_ONE_RUN:
        shown["metadata"].pop(field, None)
    # Who gets which depends on who came first.
    shown.get("status", {}).pop("podIP", None)
    if obj["kind"] == SECRET.kind:
        shown["data"] = {
            key: base64.b64decode(value).decode(errors="backslashreplace")
            for key, value in obj["data"].items()
        }
    text = json.dumps(shown, sort_keys=True)
    text = UUID.sub(lambda found: names.get(found[0], "<gone>"), text)
    for pattern, word in ((TIME, "<time>"), (TOKEN, "<token>"), (DIGEST, "<digest>")):
        text = pattern.sub(word, text)
    return text


def _orphans(objects: list[Object], names: dict[str, str]) -> list[str]:
    return [
        f"{_name(obj)} is orphaned"
        for obj in objects
        for owner in obj["metadata"].get("ownerReferences", [])
        if owner["uid"] not in names
    ]


def _tokens(world: World) -> list[str]:
    """A tier makes one token of each role, ever, unless it rotates them; no two are the same."""
    found = [
        f"{len(tokens)} {role} tokens were made for one tier"
        for (_, role), tokens in world.tokens.items()
        if len(tokens) != 1 and (role == "operator" or not world.rotates)
    ]
    made = Counter(token for tokens in world.tokens.values() for token in tokens)
    return found + [
        f"one token was given out {count} times" for count in made.values() if count > 1
    ]


def _token_counts(world: World) -> list[str]:
    """How many tokens of each role a tier had, without whose they are."""
    return [f"{len(tokens)} {role}" for (_, role), tokens in world.tokens.items()]


def _users(world: World) -> list[str]:
    """Every rank has the users of its tier's record, and no other."""
    wrong = []
    for pod in _rank_pods(world):
        labels = pod["metadata"]["labels"]
        record, rank = _record(world, labels[TIER_LABEL]), int(labels[RANK_LABEL])
        if record is None:
            wrong.append(f"{_name(pod)} runs and has no record")
            continue
        found = _server(world, pod).users
        wanted = {name: _made(name, rules) for name, rules in users(record, rank=rank).items()}
        if {name: user.line() for name, user in found.items() if name != REVISION_USER} != wanted:
            wrong.append(f"{_name(pod)} has other users than the record")
        revision = found.get(REVISION_USER)
        if revision is None or revision.passwords != {acl_revision(record, rank=rank)}:
            wrong.append(f"{_name(pod)} has not loaded its ACL file")
    return wrong


def _made(name: str, rules: tuple[str, ...]) -> str:
    user = FakeUser(name)
    user.apply(rules)
    return user.line()


def _record(world: World, tier: str) -> Record | None:
    for secret in world.cluster.all(SECRET):
        if secret["metadata"]["name"] == acl_name(tier):
            return from_json(base64.b64decode(secret["data"][RECORD_KEY]))
    return None
