"""A rollout under a real vLLM: two models of one name whose KV gives other tokens when mixed up."""

from collections.abc import Callable
from pathlib import Path

import vllm_engine as vllm
from engine_pod import Node
from vllm_tier import CHUNK, CHUNKS, PROMPTS, WARM, Row, Users, kept, published, started

from livecluster.fixtures import NewTier
from livecluster.generations import Generations
from livecluster.waiting import eventually

ROW = Row("MP, one rank, plugin", {"striping": "Hash"}, tensor=1, servers=1)
STORED = PROMPTS[:4]
ASKED = STORED[:3]
"""The last one is left for the engine that is fenced: it has it nowhere but in the tier."""
STORED_SECONDS = 120.0
FENCED_SECONDS = 10.0


def test_engines_of_both_models_get_their_own_kv_or_none(
    new_tier: NewTier,
    node: Node,
    models: Callable[[int], Path],
    expected: list[tuple[int, ...]],
) -> None:
    tier = started(new_tier, ROW)
    generations, users = Generations(tier), Users(tier, ca=None)
    (old,) = generations.rows()
    first = published(tier)
    with vllm.running(node, model=models(1), name="first", files=first) as engine:
        engine.ask(WARM)
        for number, prompt in enumerate(STORED):
            assert engine.ask(prompt).tokens == expected[number]
        wanted = CHUNKS * (1 + len(STORED))
        eventually(lambda: kept(users) == wanted, seconds=STORED_SECONDS, what="all is stored")

    tier.patch({"model": {"revision": "2"}})
    eventually(lambda: len(generations.rows()) == 2, seconds=30, what="a second generation")
    tier.wait_ready()
    second = published(tier)
    with vllm.running(node, model=models(2), name="second", files=second) as engine:
        engine.ask(WARM)
        hits = engine.hit_tokens()
        rolled = [engine.ask(prompt).tokens for prompt in ASKED]
        assert engine.hit_tokens() == hits, "the new model was given KV that it never stored"
        own = [engine.ask(prompt, salt="own").tokens for prompt in ASKED]
    assert rolled == own
    assert all(one != other for one, other in zip(rolled, expected, strict=False))

    # The mistake that a generation is there for: the new model with the old Secret.
    with vllm.running(node, model=models(2), name="stale", files=first) as engine:
        engine.ask(WARM)
        stale = [engine.ask(prompt).tokens for prompt in ASKED]
        assert engine.hit_tokens() >= CHUNKS * CHUNK * len(ASKED), engine.said()
    assert all(one != other for one, other in zip(stale, own, strict=True)), "it would be seen"

    tier.patch({"model": {"revision": "1"}})
    eventually(lambda: generations.state(old) == "Live", seconds=30, what="it is rolled back")
    with vllm.running(node, model=models(1), name="back", files=published(tier)) as engine:
        engine.ask(WARM)
        hits = engine.hit_tokens()
        for number, prompt in enumerate(ASKED):
            assert engine.ask(prompt).tokens == expected[number]
        assert engine.hit_tokens() - hits == CHUNKS * CHUNK * len(ASKED), engine.said()
        # Weights changed in place: its owner bumps the salt, and the engine that runs on misses.
        tier.patch({"model": {"salt": "of today"}})
        generations.wait(old, "Fenced", "Purged", seconds=FENCED_SECONDS)
        hits = engine.hit_tokens()
        assert engine.ask(STORED[-1]).tokens == expected[len(STORED) - 1]
        assert engine.hit_tokens() == hits
