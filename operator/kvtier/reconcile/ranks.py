"""Asks every rank's server each quarter of a minute how it is, beside all reconciles, for metrics.

One INFO each, in a session of its own: ranks' figures are never older than the round, and a scrape
asks nobody. It writes nothing, and nothing waits for it.
"""

import asyncio
import logging
from collections.abc import Iterator
from typing import Final

from kvtier.generation.acl import OPERATOR_USER
from kvtier.metrics import Metrics
from kvtier.metrics_ranks import SECTIONS, RankFigures, figures
from kvtier.plan.observed import RankState
from kvtier.reconcile.clock import Clock
from kvtier.reconcile.memory import Key, Memory, TierMemory
from kvtier.redact import redact
from kvtier.render.names import host
from kvtier.store.protocol import Address, Connect, Credentials, StoreError, TlsName

log = logging.getLogger(__name__)

PERIOD: Final = 15.0
"""Seconds from the start of one round to the start of the next."""
REST: Final = 2.0
"""Seconds of rest for each second of a round: however many ranks there are, reconciles have two
thirds of the time to themselves."""
AT_ONCE: Final = 4
"""Tiers whose ranks are asked at a time."""


class RankWatcher:
    """Asks the ranks that the reconciler saw last, as the operator's own user."""

    def __init__(self, *, memory: Memory, connect: Connect, clock: Clock, metrics: Metrics) -> None:
        self._memory = memory
        self._connect = connect
        self._clock = clock
        self._metrics = metrics

    async def run(self, stop: asyncio.Event) -> None:
        """Round after round until ``stop`` is set."""
        wait = PERIOD
        while not await self._clock.wait(stop, wait):
            began = self._clock.monotonic()
            await self.look()
            spent = self._clock.monotonic() - began
            wait = max(PERIOD - spent, REST * spent)

    async def look(self) -> None:
        """One round."""
        keys = iter(self._memory.keys())
        await asyncio.gather(*(self._some(keys) for _ in range(AT_ONCE)))

    async def _some(self, keys: Iterator[Key]) -> None:
        for key in keys:
            try:
                await self._look(key)
            except Exception:
                log.exception("%s/%s: no look at its ranks", *key)

    async def _look(self, key: Key) -> None:
        memory = self._memory.find(key)
        if memory is None or memory.record is None or not memory.ranks:
            return
        token = memory.record.operator_token
        credentials = Credentials(username=OPERATOR_USER, password=token)
        states = list(memory.ranks)
        found = await asyncio.gather(
            *(self._ask(_address(key, memory, state), credentials) for state in states)
        )
        if self._memory.find(key) is not memory:
            # Deleted meanwhile: no series of it may come back.
            return
        ranks = {state.rank: figures for state, figures in zip(states, found, strict=True)}
        runs = {rank: found.run for rank, found in ranks.items() if found is not None}
        restarted = {rank for rank, run in runs.items() if memory.runs.get(rank, run) != run}
        memory.runs |= runs
        self._metrics.ranks.show(
            *key, ranks=ranks, restarted=restarted, at=self._clock.now().timestamp()
        )

    async def _ask(self, address: Address | None, credentials: Credentials) -> RankFigures | None:
        if address is None:
            return None
        try:
            async with self._connect(address, credentials) as store:
                return figures(await store.info(*SECTIONS))
        except StoreError as error:
            log.debug("%s", redact(str(error)))
            return None


def _address(key: Key, memory: TierMemory, state: RankState) -> Address | None:
    """Where a rank listens, None while it is not to be asked."""
    if not state.ready or not state.address:
        return None
    if not state.tls:
        return Address(host=state.address)
    namespace, tier = key
    name = host(tier, namespace=namespace, rank=state.rank)
    return Address(host=state.address, tls=TlsName(name=name, ca=memory.ca or ""))
