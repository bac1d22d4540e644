"""What the schema alone cannot say, checked again for every tier that is read.

The API server checks most of this too (the rules beside the fields); nothing here relies on it,
because a tier may have been stored before its rule existed. Every check returns lines that name
the field and the fix.
"""

import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import TypeVar

from kvtier.api import admission, combinations, groups
from kvtier.api.base import MAX_NAME_LENGTH
from kvtier.api.engine import MAX_L1_BYTES, MIN_L1_BYTES, MP_NEEDS_VLLM, Connector
from kvtier.api.placement import MAX_BITS_PER_SECOND, MIN_BITS_PER_SECOND
from kvtier.api.pool import MAX_REQUESTS_PER_SECOND, LengthQuantile
from kvtier.api.rollout import MAX_DRAIN_SECONDS
from kvtier.api.scalars import parse_duration, parse_quantity
from kvtier.api.store import (
    MAX_CPU_CORES,
    MAX_MEMORY_BYTES,
    MIN_CPU_MILLICORES,
    MIN_MEMORY_BYTES,
    RESERVED_ANNOTATION_PREFIXES,
    RESERVED_LABEL_PREFIXES,
)
from kvtier.api.types import KVCacheTier, Toleration

_T = TypeVar("_T")

_DNS_1035_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_DNS_1123_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME_PART = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


def problems(tier: KVCacheTier) -> list[str]:
    """One line per problem, each naming its field and the fix; empty when the tier is usable."""
    found = [line for check in _CHECKS for line in check(tier)]
    # Arithmetic over a spec that is already refused would only repeat the refusal.
    return found or _memory(tier)


def _name(tier: KVCacheTier) -> list[str]:
    name, namespace = tier.metadata.name, tier.metadata.namespace
    found = []
    if len(name) > MAX_NAME_LENGTH:
        found.append(
            f"metadata.name: {name[:60]!r} has {len(name)} characters; write at most"
            f" {MAX_NAME_LENGTH} (ranks and Secrets are named after it)"
        )
    if not _DNS_1035_LABEL.fullmatch(name):
        found.append(
            f"metadata.name: {name[:60]!r} is no DNS label; write lower-case letters, digits and"
            " '-', starting with a letter, such as glm-5-3"
        )
    if len(namespace) > 63 or not _DNS_1123_LABEL.fullmatch(namespace):
        found.append(f"metadata.namespace: {namespace[:60]!r} is no DNS label; name a namespace")
    return found


def _layout(tier: KVCacheTier) -> list[str]:
    layout = tier.spec.model.layout
    given = [
        name
        for name, value in (
            ("gqa", layout.gqa),
            ("mla", layout.mla),
            ("groups", layout.groups),
            ("bytesPerToken", layout.bytes_per_token),
        )
        if value is not None
    ]
    if len(given) == 1:
        return groups.problems(layout.groups) if layout.groups else []
    what = f"has {' and '.join(given)}" if given else "is empty"
    return [f"spec.model.layout: {what}; set exactly one of gqa, mla, groups, bytesPerToken"]


def _parallelism(tier: KVCacheTier) -> list[str]:
    pool, layout = tier.spec.pool, tier.spec.model.layout
    parallel = pool.parallelism
    tensor = parallel.tensor or pool.ranks
    found = []
    if tensor * parallel.pipeline * parallel.prefill_context != pool.ranks:
        found.append(
            f"spec.pool.parallelism: tensor {tensor} x pipeline {parallel.pipeline} x"
            f" prefillContext {parallel.prefill_context} is not ranks ({pool.ranks}); set tensor"
            " so that it is"
        )
    if tensor % parallel.decode_context:
        found.append(
            f"spec.pool.parallelism.decodeContext: {parallel.decode_context} does not divide tensor"
            f" ({tensor}); write a divisor of it"
        )
    counts = {"gqa": layout.gqa.kv_heads} if layout.gqa else {}
    for index, group in enumerate(layout.groups or ()):
        counts |= {f"groups[{index}]": group.kv_heads} if group.kv_heads else {}
    found += [
        f"spec.model.layout.{path}.kvHeads: {heads} and tensor parallel size {tensor} do not"
        " divide each other; write the model's num_key_value_heads and the engine's size"
        for path, heads in counts.items()
        if heads % tensor and tensor % heads
    ]
    return found


def _combination(tier: KVCacheTier) -> list[str]:
    return combinations.problems(tier.spec)


def _l1(tier: KVCacheTier) -> list[str]:
    engine = tier.spec.pool.engine
    if MIN_L1_BYTES <= engine.l1_bytes <= MAX_L1_BYTES:
        return []
    return [
        f"spec.pool.engine.l1Size: {engine.l1_size} is not from 64Mi to 16Ti; write the host memory"
        " of one LMCache server, such as 20Gi"
    ]


def _vllm(tier: KVCacheTier) -> list[str]:
    engine = tier.spec.pool.engine
    in_servers = engine.connector is Connector.LMCACHE_MP
    if engine.vllm is None or not in_servers or engine.vllm >= MP_NEEDS_VLLM:
        return []
    return [
        f"spec.pool.engine.vllmVersion: {engine.vllm_version} does not run connector LMCacheMP,"
        " which needs vLLM 0.14 or newer; write another release, or"
        " spec.pool.engine.connector: LMCacheInProcess"
    ]


def _rates(tier: KVCacheTier) -> list[str]:
    lengths = [rate.tokens for rate in tier.spec.pool.prefill_rate]
    return [
        f"spec.pool.prefillRate: tokens {length} is there twice; keep one"
        for length in _repeated(lengths)
    ]


def _times(tier: KVCacheTier) -> list[str]:
    pool = tier.spec.pool
    return [
        f"spec.pool.{field}: {text} is above 1h; write the time of one hit, such as 330ms"
        for field, text in (
            ("hitLatency", pool.hit_latency),
            ("hitEngineTime", pool.hit_engine_time),
        )
        if text is not None and parse_duration(text) > 3600
    ]


def _workload(tier: KVCacheTier) -> list[str]:
    workload = tier.spec.workload
    bounds = (
        ("requestsPerSecond", workload.requests_per_second, MAX_REQUESTS_PER_SECOND, "0.45"),
        ("hitRate", workload.hit_rate, 1, "0.8"),
    )
    found = [
        f"spec.workload.{field}: {text} is not above 0 and at most {most}; write one such as"
        f' "{example}"'
        for field, text, most, example in bounds
        if text is not None and not 0 < float(text) <= most
    ]
    target = workload.target_ttft
    if target is not None and not 1e-3 <= parse_duration(target) <= 3600:
        found.append(
            f"spec.workload.targetTTFT: {target} is not from 1ms to 1h; write a time to first"
            " token such as 2s"
        )
    return found


def _quantiles(tier: KVCacheTier) -> list[str]:
    workload = tier.spec.workload
    return [
        line
        for field, quantiles in (
            ("hitTokens", workload.hit_tokens),
            ("promptTokens", workload.prompt_tokens),
        )
        for line in _quantile_list(f"spec.workload.{field}", quantiles)
    ]


def _quantile_list(path: str, quantiles: list[LengthQuantile]) -> list[str]:
    found = [
        f"{path}[{index}].quantile: {item.quantile} is not above 0 and at most 1; write one such"
        ' as "0.5"'
        for index, item in enumerate(quantiles)
        if not 0 < float(item.quantile) <= 1
    ]
    found += [
        f"{path}: quantile {value:g} is there twice; keep one"
        for value in _repeated([float(item.quantile) for item in quantiles])
    ]
    rising = sorted(quantiles, key=lambda item: float(item.quantile))
    found += [
        f"{path}: tokens fall from {low.tokens} at {low.quantile} to {high.tokens} at"
        f" {high.quantile}; tokens must not fall as the quantile rises"
        for low, high in pairwise(rising)
        if high.tokens < low.tokens
    ]
    return found


def _store_sizes(tier: KVCacheTier) -> list[str]:
    store = tier.spec.store
    memory, cpu = parse_quantity(store.memory_per_rank), parse_quantity(store.cpu)
    found = []
    if not MIN_MEMORY_BYTES <= memory <= MAX_MEMORY_BYTES:
        found.append(
            f"spec.store.memoryPerRank: {store.memory_per_rank} is not from 64Mi to 16Ti; write one"
            " rank's memory limit, such as 64Gi"
        )
    if not MIN_CPU_MILLICORES <= cpu * 1000 <= MAX_CPU_CORES * 1000:
        found.append(
            f"spec.store.cpu: {store.cpu} is not from 10m to {MAX_CPU_CORES}; write one rank's"
            " cores"
        )
    if store.io_threads > 1 and not (store.cpu.isdigit() and int(store.cpu) > store.io_threads):
        enough = cpu >= store.io_threads + 1
        found.append(
            f"spec.store.cpu: {store.cpu} is"
            f" {'no number of whole cores, which' if enough else 'too little for'} ioThreads"
            f" {store.io_threads}{' needs' if enough else ''}; write whole cores (a number without"
            f" unit), at least {store.io_threads + 1}"
        )
    return found


def _metadata_maps(tier: KVCacheTier) -> list[str]:
    store = tier.spec.store
    return [
        *_keys("spec.store.nodeSelector", store.node_selector, reserved=()),
        *_label_values("spec.store.nodeSelector", store.node_selector),
        *_keys("spec.store.labels", store.labels, reserved=RESERVED_LABEL_PREFIXES),
        *_label_values("spec.store.labels", store.labels),
        *_keys("spec.store.annotations", store.annotations, reserved=RESERVED_ANNOTATION_PREFIXES),
    ]


def _keys(path: str, values: Mapping[str, str], *, reserved: tuple[str, ...]) -> list[str]:
    found = []
    for key in values:
        if not is_qualified_name(key):
            found.append(f"{path}: key {key[:60]!r} is no name; write one such as example.com/team")
        elif key.startswith(reserved):
            found.append(f"{path}: key {key!r} has a reserved prefix; choose another")
    return found


def _label_values(path: str, values: Mapping[str, str]) -> list[str]:
    return [
        f"{path}.{key}: {value!r} is no label value; write at most 63 letters, digits, '-', '_' or"
        " '.', starting and ending with a letter or digit"
        for key, value in values.items()
        if not is_label_value(value)
    ]


def _pull_secrets(tier: KVCacheTier) -> list[str]:
    return [
        f"spec.store.imagePullSecrets: name {name} is there twice; keep one"
        for name in _repeated([secret.name for secret in tier.spec.store.image_pull_secrets])
    ]


def _tolerations(tier: KVCacheTier) -> list[str]:
    return [
        f"spec.store.tolerations[{index}]{line}"
        for index, toleration in enumerate(tier.spec.store.tolerations)
        for line in _toleration(toleration)
    ]


def _toleration(toleration: Toleration) -> list[str]:
    exists = toleration.operator == "Exists"
    found = []
    if not toleration.key and not exists:
        found.append(": no key; write one, or operator: Exists")
    if toleration.key and not is_qualified_name(toleration.key):
        found.append(f".key: {toleration.key[:60]!r} is no name; write one such as example.com/gpu")
    if exists and toleration.value:
        found.append(f".value: {toleration.value!r} with operator Exists; remove it")
    if toleration.value and not is_label_value(toleration.value):
        found.append(f".value: {toleration.value!r} is no label value; write the taint's value")
    if toleration.toleration_seconds is not None and toleration.effect != "NoExecute":
        found.append(".tolerationSeconds: needs effect NoExecute; set it or remove this")
    return found


def _links(tier: KVCacheTier) -> list[str]:
    placement = tier.spec.placement
    names = [domain.name for domain in placement.domains]
    found = [
        f"spec.placement.domains[{index}].key: {domain.key[:60]!r} is no label name; write one such"
        " as topology.kubernetes.io/zone"
        for index, domain in enumerate(placement.domains)
        if not is_qualified_name(domain.key)
    ]
    found += [
        f"spec.placement.domains: name {name} is there twice; keep one" for name in _repeated(names)
    ]
    found += [
        f"spec.placement.links: domain {name} is there twice; keep one"
        for name in _repeated([link.domain for link in placement.links])
    ]
    if placement.within is not None and placement.within not in names:
        found.append(
            f"spec.placement.within: {placement.within!r} is no domain of this tier; write one of"
            f" {', '.join(names)}"
        )
    if not 600 <= placement.probe.interval_seconds <= 720 * 3600:
        found.append(
            f"spec.placement.probe.interval: {placement.probe.interval} is not from 10m to 720h;"
            " write how often links are to be measured, such as 6h"
        )
    for index, link in enumerate(placement.links):
        path = f"spec.placement.links[{index}]"
        if link.domain not in names:
            found.append(
                f"{path}.domain: {link.domain!r} is no domain of this tier; write one of"
                f" {', '.join(names)}"
            )
        if not MIN_BITS_PER_SECOND <= parse_quantity(link.bits_per_second) <= MAX_BITS_PER_SECOND:
            found.append(
                f"{path}.bitsPerSecond: {link.bits_per_second} is not from 1M to 1P bits per"
                " second; write the link's rate, such as 25G"
            )
        if not 1e-6 <= link.round_trip_seconds <= 10:
            found.append(
                f"{path}.roundTrip: {link.round_trip} is not from 1us to 10s; write the round-trip"
                " time, such as 50us"
            )
    return found


def _rollout(tier: KVCacheTier) -> list[str]:
    rollout = tier.spec.rollout
    if rollout.drain_seconds <= MAX_DRAIN_SECONDS:
        return []
    return [f"spec.rollout.drainTimeout: {rollout.drain_timeout} is above 168h; write one like 1h"]


_CHECKS: tuple[Callable[[KVCacheTier], list[str]], ...] = (
    _name,
    _layout,
    _parallelism,
    _combination,
    _l1,
    _vllm,
    _rates,
    _times,
    _quantiles,
    _workload,
    lambda tier: admission.problems(tier.spec.admission),
    _store_sizes,
    _metadata_maps,
    _pull_secrets,
    _tolerations,
    _links,
    _rollout,
)


def _memory(tier: KVCacheTier) -> list[str]:
    """What is left for KV must hold 16 chunks, and Valkey and L1 must take a chunk's object."""
    # render reads the models of this package: imported here, there is no cycle.
    from kvtier.render.l1 import l1_problem
    from kvtier.render.memory import MemoryTooSmall, memory

    try:
        memory(tier.spec)
    except MemoryTooSmall as error:
        return [str(error)]
    return l1_problem(tier.spec)


def is_qualified_name(text: str) -> bool:
    """Whether ``text`` can be the key of a label or annotation."""
    prefix, slash, name = text.rpartition("/")
    if slash and (len(prefix) > 253 or not _SUBDOMAIN.fullmatch(prefix)):
        return False
    return len(name) <= 63 and _NAME_PART.fullmatch(name) is not None


def is_label_value(text: str) -> bool:
    """Whether ``text`` can be the value of a label."""
    return text == "" or (len(text) <= 63 and _NAME_PART.fullmatch(text) is not None)


def _repeated(values: list[_T]) -> list[_T]:
    """Each value that occurs again, once."""
    return list(dict.fromkeys(value for i, value in enumerate(values) if value in values[:i]))
