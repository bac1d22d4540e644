"""A tier is made to fit the machine, and says what is not as in its file."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_trial import SMALL

from kvtier.api.load import parse_tier
from kvtier.api.types import KVCacheTier
from kvtier.generation.identity import generation_id
from kvtier.render.memory import memory
from kvtier.trial.machine import available_memory
from kvtier.trial.scale import SHARE, TooSmall, scaled

GIB, MIB = 1 << 30, 1 << 20


def tier(**spec: dict[str, Any]) -> KVCacheTier:
    document = deepcopy(SMALL)
    for part, fields in spec.items():
        document["spec"][part] |= fields
    return parse_tier(document)


LARGE = tier(
    model={"layout": {"gqa": {"layers": 80, "kvHeads": 8, "headDim": 128}}},
    pool={"ranks": 8, "maxEngines": 8},
    store={"memoryPerRank": "64Gi"},
)


def test_a_tier_that_fits_is_left_as_it_is() -> None:
    found = scaled(tier(), available=GIB)
    assert found.tier == tier()
    assert found.changes == ()


def test_less_memory_is_shared_by_all_ranks_and_said() -> None:
    found = scaled(tier(store={"memoryPerRank": "64Gi"}), available=2 * GIB)
    assert found.tier.spec.store.memory_bytes == int(SHARE * GIB) // MIB * MIB
    assert found.changes == ("614 MiB of memory a rank, not 64 GiB",)


def test_engines_are_fewer_only_where_memory_alone_does_not_do() -> None:
    enough, scarce = scaled(LARGE, available=64 * GIB), scaled(LARGE, available=16 * GIB)
    assert enough.tier.spec.pool.max_engines == 8
    assert scarce.tier.spec.pool.max_engines == 1
    assert scarce.changes[-1] == "sized for one engine, not 8"
    assert memory(scarce.tier.spec).chunks >= 16


def test_too_small_a_machine_is_told_how_much_would_do() -> None:
    with pytest.raises(TooSmall, match="8 ranks get 76 MiB of memory each here, and one chunk is"):
        scaled(LARGE, available=GIB)
    with pytest.raises(TooSmall) as refused:
        scaled(LARGE, available=GIB)
    gigabytes = float(str(refused.value).split("free about ")[1].split(" GiB")[0])
    assert "\n" not in str(refused.value)
    assert scaled(LARGE, available=int(gigabytes * 1.01 * GIB)).changes


def test_certificates_stay_in_the_cluster() -> None:
    found = scaled(tier(store={"tls": {"secretName": "cert"}}), available=GIB)
    assert found.tier.spec.store.tls is None
    assert found.changes == ("without TLS: the certificate is in the cluster's Secret",)


@settings(deadline=None)
@given(available=st.integers(0, 512 * GIB))
def test_what_is_made_fits_and_has_the_same_keys(available: int) -> None:
    try:
        found = scaled(LARGE, available=available)
    except TooSmall:
        return
    assert found.tier.spec.store.memory_bytes * 8 <= max(SHARE * available, 8 * MIB)
    assert generation_id(found.tier.spec) == generation_id(LARGE.spec)
    assert memory(found.tier.spec).chunk_bytes == memory(LARGE.spec).chunk_bytes


def test_memory_is_what_is_available_within_the_container(tmp_path: Any) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nMemAvailable:    4096 kB\n")
    cgroup = tmp_path / "cgroup"
    assert available_memory(proc=tmp_path, cgroup=cgroup) == 4 * MIB
    cgroup.mkdir()
    (cgroup / "memory.max").write_text("max\n")
    (cgroup / "memory.current").write_text("1000\n")
    assert available_memory(proc=tmp_path, cgroup=cgroup) == 4 * MIB
    (cgroup / "memory.max").write_text("3000\n")
    assert available_memory(proc=tmp_path, cgroup=cgroup) == 2000
    (cgroup / "memory.max").write_text("500\n")
    assert available_memory(proc=tmp_path, cgroup=cgroup) == 0
    assert available_memory(proc=cgroup, cgroup=tmp_path) > 0
