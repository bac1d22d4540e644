"""Pure: what a pod is given so that its engine uses a tier.

Injected is exactly what is complete with it: an engine of vLLM whose arguments can all be read, in
a tier with kvtier's plugin; with LMCacheMP beside the LMCache servers that the tier asks for.
"""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from kvtier.api.types import GROUP, Connector, KVCacheTier, Striping
from kvtier.generation.entry import GenerationEntry, GenerationState
from kvtier.generation.identity import IDENTITY_VERSION
from kvtier.generation.pods.engines import Role
from kvtier.generation.pods.read import PodIdentity, Starts, read_pod, starts_of
from kvtier.generation.pods.safe import mapping, mappings, text
from kvtier.generation.record import Record
from kvtier.render import lmcache
from kvtier.render.engine import PYTHON_PATH, environment, has_plugin
from kvtier.render.mount import IN_CLUSTER, MOUNT_PATH
from kvtier.render.names import POOL_LABEL, engine_secret_name
from kvtier.render.transport import transport
from kvtier.render.vllm import kv_transfer_config
from kvtier.webhook.matching import OURS, Cause, LeftAlone, Match, match
from kvtier.webhook.patch import Draft, Operation

ANNOTATION: Final = f"{GROUP}/inject"
VOLUME: Final = "kvtier"
_TRANSFER_FLAGS: Final = ("--kv-transf", "--kv-offloading")
_ACROSS_NODES: Final = ("--nnodes", "--node-rank")
_OTHER_PROGRAMS: Final = ("dynamo.vllm", "huggingfaceserver")
"""They take vLLM's flags, and have connectors of their own beside them."""


@dataclass(frozen=True, slots=True)
class Injection:
    """``operations`` is the JSON patch for the pod."""

    generation: str
    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class _Job:
    """One container and the words that its command is to end with."""

    starts: Starts
    words: tuple[str, ...]


def wanted_tier(pod: Mapping[str, Any]) -> str | None:
    """The tier that the pod asks to be injected for, None if it does not ask. Raises LeftAlone."""
    metadata = mapping(pod.get("metadata"))
    asked = mapping(metadata.get("annotations")).get(ANNOTATION)
    if asked in (None, "", "false"):
        return None
    if asked != "true":
        raise LeftAlone(Cause.CONFLICT, f'annotation {ANNOTATION} is not "true" or "false"')
    return text(mapping(metadata.get("labels")).get(POOL_LABEL)) or None


def inject(
    pod: Mapping[str, Any], *, tier: KVCacheTier, document: Mapping[str, Any]
) -> Injection | None:
    """What the pod is given; None if it has a Secret of the tier already.

    ``document`` is the tier as it was read, ``tier`` the same parsed. Raises LeftAlone.
    """
    name = tier.metadata.name
    read = read_pod(pod, tier=name, config_maps={})
    if read.generations:
        return None
    engine = tier.spec.pool.engine
    if engine.connector is Connector.GENERIC or not has_plugin(tier.spec):
        raise LeftAlone(
            Cause.CONNECTOR,
            f"engines of a tier with connector {engine.connector} and adapter {engine.adapter} are"
            " not injected, only those with the plugin; mount the Secret by hand",
        )
    starts = starts_of(pod, tier=name, config_maps={})
    engines, servers = _parts(starts, read)
    if engine.connector is Connector.LMCACHE_MP:
        _server_for_each(engines, servers, tier)
    else:
        servers = []
    found = match(read, tier=tier, document=document)
    jobs = [*_server_jobs(servers, found), *_engine_jobs(engines, found, servers=bool(servers))]
    draft = Draft(pod)
    _mount(draft, jobs, found)
    for job in jobs:
        _set_variables(draft, job.starts, environment(found.tier, found.generation))
    for job in jobs:
        _append(draft, job, tier=name)
    _is_as_meant(draft, read, found)
    return Injection(found.generation, draft.operations)


def _parts(starts: Sequence[Starts], read: PodIdentity) -> tuple[list[Starts], list[Starts]]:
    """The containers of engines and of LMCache servers."""
    engines: list[Starts] = []
    servers: list[Starts] = []
    for each in starts:
        if each.problems:
            raise LeftAlone(Cause.UNREADABLE, f"container {each.name}: {each.problems[0]}")
        if len(each.launches) > 1:
            raise LeftAlone(Cause.ENGINE, f"container {each.name} starts several programs")
        role = each.launches[0].engine.role
        if role is Role.WORKER:
            raise LeftAlone(
                Cause.ENGINE, f"container {each.name} is part of an engine of many pods"
            )
        if role is Role.CACHE:
            servers.append(each)
        elif each.kind == "containers":
            engines.append(each)
    if not engines:
        raise LeftAlone(Cause.ENGINE, read.unreadable.get("arguments", "no container runs vLLM"))
    for each in engines:
        _is_plain_vllm(each)
    return engines, servers


def _is_plain_vllm(starts: Starts) -> None:
    launch = starts.launches[0]
    other = next((name for name in _OTHER_PROGRAMS if name in starts.program), None)
    if launch.engine.name != "vllm" or other:
        raise LeftAlone(
            Cause.ENGINE,
            f"container {starts.name} runs {other or launch.engine.name}: only vLLM's own server"
            " is injected",
        )
    flags = [_flag(word) for word in launch.words]
    if any(flag.startswith(_TRANSFER_FLAGS) for flag in flags):
        raise LeftAlone(
            Cause.TRANSFER_CONFIG,
            f"container {starts.name} has a transfer config of its own; remove it, or the"
            f" annotation {ANNOTATION}",
        )
    backend = _value(launch.words, "--distributed-executor-backend")
    if backend == "ray" or any(flag in _ACROSS_NODES for flag in flags):
        raise LeftAlone(Cause.ENGINE, f"container {starts.name} is part of an engine of many pods")


def _flag(word: str) -> str:
    """``--a_b.c=d`` -> ``--a-b``."""
    return word.partition("=")[0].partition(".")[0].replace("_", "-")


def _value(words: Sequence[str], flag: str) -> str:
    for word, following in zip(words, (*words[1:], ""), strict=True):
        if _flag(word) == flag:
            return word.partition("=")[2] if "=" in word else following
    return ""


def _server_for_each(
    engines: Sequence[Starts], servers: Sequence[Starts], tier: KVCacheTier
) -> None:
    need = len(lmcache.servers(tier))
    if len(engines) > 1:
        raise LeftAlone(Cause.ENGINE, "several containers run vLLM, and LMCache servers serve one")
    if len(servers) != need:
        raise LeftAlone(
            Cause.CONNECTOR,
            f"connector LMCacheMP with striping {tier.spec.pool.striping} needs {need} containers"
            f" that start `lmcache server`, and the pod has {len(servers)}",
        )


def _server_jobs(servers: Sequence[Starts], found: Match) -> Iterator[_Job]:
    tier, pool = found.tier, found.tier.spec.pool
    for index, each in enumerate(servers):
        ranks = range(index, index + 1) if pool.striping is Striping.SHARD else range(pool.ranks)
        adapter = lmcache.l2_adapter(
            tier,
            _record(found.generation),
            ranks=ranks,
            settings=transport(tier.spec),
            mount=IN_CLUSTER,
        )
        words = (*lmcache.server_arguments(tier, index).split(), "--l2-adapter", _json(adapter))
        said = {_flag(word) for word in each.launches[0].words}
        if clash := sorted(said & {word for word in words if word.startswith("--")}):
            raise LeftAlone(
                Cause.TRANSFER_CONFIG,
                f"container {each.name} has {', '.join(clash)}, which kvtier sets; remove it",
            )
        yield _Job(each, words)


def _engine_jobs(engines: Sequence[Starts], found: Match, *, servers: bool) -> Iterator[_Job]:
    addresses = lmcache.servers(found.tier) if servers else ()
    config = _json(kv_transfer_config(found.tier.spec, servers=addresses))
    for each in engines:
        yield _Job(each, ("--kv-transfer-config", config))


def _record(generation: str) -> Record:
    """One without tokens: the plugin reads its own from the mounted file."""
    entry = GenerationEntry(id=generation, state=GenerationState.LIVE, token="", identity=None)
    return Record(IDENTITY_VERSION, operator_token="", generations=(entry,), current_id=generation)


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


def _mount(draft: Draft, jobs: Sequence[_Job], found: Match) -> None:
    spec = mapping(draft.document.get("spec"))
    if VOLUME in {text(volume.get("name")) for volume in mappings(spec.get("volumes"))}:
        raise LeftAlone(Cause.CONFLICT, f"the pod has a volume {VOLUME}; name it otherwise")
    secret = engine_secret_name(found.tier.metadata.name, found.generation)
    draft.append(("spec", "volumes"), {"name": VOLUME, "secret": {"secretName": secret}})
    mount = {"name": VOLUME, "mountPath": MOUNT_PATH, "readOnly": True}
    for job in jobs:
        place = ("spec", job.starts.kind, job.starts.index, "volumeMounts")
        for each in mappings(draft.at(place)):
            if f"{text(each.get('mountPath'))}/".startswith(f"{MOUNT_PATH}/"):
                raise LeftAlone(
                    Cause.CONFLICT,
                    f"container {job.starts.name} has a mount at {each['mountPath']}; move it",
                )
        draft.append(place, mount)


def _set_variables(draft: Draft, starts: Starts, values: Mapping[str, str]) -> None:
    place = ("spec", starts.kind, starts.index, "env")
    found = {
        text(each.get("name")): (index, each) for index, each in enumerate(draft.at(place) or ())
    }
    for name, value in values.items():
        if name not in found:
            draft.append(place, {"name": name, "value": value})
            continue
        index, there = found[name]
        before = there.get("value")
        if name == PYTHON_PATH and before and "valueFrom" not in there:
            draft.replace((*place, index, "value"), f"{value}:{before}")
        elif before != value:
            raise LeftAlone(
                Cause.CONFLICT,
                f"container {starts.name} sets {name}, which has to be {value}; remove it",
            )


def _append(draft: Draft, job: _Job, *, tier: str) -> None:
    """Put the words behind the command: to its arguments, or to the script of its shell."""
    starts = job.starts
    place = ("spec", starts.kind, starts.index)
    with_arguments = Draft(draft.document)
    with_arguments.append((*place, "args"), *job.words)
    if _ends_with(with_arguments.document, job, tier=tier):
        draft.append((*place, "args"), *job.words)
        return
    for script in _scripts(draft, job):
        longer = f"{str(draft.at(script)).rstrip()} {shlex.join(job.words)}"
        with_script = Draft(draft.document)
        with_script.replace(script, longer)
        if _ends_with(with_script.document, job, tier=tier):
            draft.replace(script, longer)
            return
    raise LeftAlone(
        Cause.UNREADABLE,
        f"container {starts.name} starts it in a way that takes no arguments at the end; let its"
        " command end with the engine's",
    )


def _scripts(draft: Draft, job: _Job) -> Iterator[tuple[str | int, ...]]:
    """Places of a shell's ``-c SCRIPT``."""
    place = ("spec", job.starts.kind, job.starts.index)
    words = [
        ((*place, part, index), text(word))
        for part in ("command", "args")
        for index, word in enumerate(draft.at((*place, part)) or ())
    ]
    for (_, option), (where, _) in pairwise(words):
        if option.startswith("-") and not option.startswith("--") and option.endswith("c"):
            yield where


def _ends_with(pod: Mapping[str, Any], job: _Job, *, tier: str) -> bool:
    """Whether the same reader that judges running pods sees the words, last and as they are."""
    for each in starts_of(pod, tier=tier, config_maps={}):
        if (each.kind, each.index) == (job.starts.kind, job.starts.index):
            before = tuple(job.starts.launches[0].words)
            after = [tuple(launch.words) for launch in each.launches]
            return after == [(*before, *job.words)]
    return False


def _is_as_meant(draft: Draft, before: PodIdentity, found: Match) -> None:
    """The pod with the patch has this generation's Secret and runs what it ran."""
    spec = found.tier.spec
    after = read_pod(draft.document, tier=found.tier.metadata.name, config_maps={})
    told = {name: value for name, value in after.fields.items() if name not in OURS}
    was = {name: value for name, value in before.fields.items() if name not in OURS}
    if (
        after.generations != {found.generation}
        or told != was
        or after.settings != before.settings
        or not after.unreadable.keys() <= before.unreadable.keys()
        or after.fields.get("connector") != spec.pool.engine.connector.value
    ):
        raise LeftAlone(Cause.UNREADABLE, "with the arguments that kvtier adds it cannot be read")
    chunk = after.fields.get("chunkTokens", spec.pool.chunk_tokens)
    if chunk != spec.pool.chunk_tokens:
        raise LeftAlone(
            Cause.CONFLICT,
            f"its chunks would be of {chunk} tokens, the tier's are of {spec.pool.chunk_tokens};"
            " remove what says so",
        )
