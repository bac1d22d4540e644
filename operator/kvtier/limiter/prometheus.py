"""Engines' counters from a Prometheus instead of from each engine: one query a look, of all tiers.

It asks for the raw samples of the last half minute, so that each has the time at which it was
scraped; older ones are none at all. Pods are told apart by the labels ``namespace`` and ``pod``,
as PodMonitors and the usual pod discovery set them. LMCache's own metrics count where somebody
scrapes them under their pod's name.
"""

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import Any, Final

import aiohttp
from prometheus_client.samples import Sample
from yarl import URL

from kvtier.engines.exposition import LONGEST_LINE, MOST_COUNTED
from kvtier.engines.hits import PROMETHEUS_NAMES, tokens_of
from kvtier.limiter.tokens import Reading

log = logging.getLogger(__name__)

STALE: Final = 30
"""Seconds after which a sample is too old."""
TIMEOUT: Final = 5.0
MOST_BYTES: Final = 16 * 2**20
"""Of one answer: 2,000 engines with 20 series each, two samples a series."""
_CHUNK: Final = 65536

Pod = tuple[str, str]
"""Namespace and name."""


def query(namespaces: tuple[str, ...] = ()) -> str:
    """The question, in PromQL. Namespaces are names of Kubernetes, which need no quoting."""
    names = "|".join(PROMETHEUS_NAMES)
    where = f',namespace=~"{"|".join(namespaces)}"' if namespaces else ""
    return f'{{__name__=~"{names}",pod!=""{where}}}[{STALE}s]'


class PrometheusReader:
    """Asks ``url``, the address under which ``/api/v1/query`` is, such as http://prometheus:9090."""

    def __init__(
        self, url: str, *, session: aiohttp.ClientSession, namespaces: tuple[str, ...] = ()
    ) -> None:
        self._url = URL(url.rstrip("/")) / "api/v1/query"
        self._query = query(namespaces)
        self._session = session
        self._failing = False

    async def read(self) -> Mapping[Pod, Reading]:
        """The newest reading of each pod; none if there is no answer. Raises nothing but what
        cancels it."""
        try:
            async with asyncio.timeout(TIMEOUT):
                body = await self._ask()
            # It may be megabytes, and requests wait for the event loop.
            found = await asyncio.to_thread(readings, body)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            if not self._failing:
                said = " ".join(str(error).split()) or "no answer in time"
                log.warning("--prometheus: no figures of engines: %s", said)
            self._failing = True
            return {}
        self._failing = False
        return found

    async def _ask(self) -> bytes:
        async with self._session.post(
            self._url, data={"query": self._query}, allow_redirects=False
        ) as response:
            if response.status != 200:
                raise ValueError(f"it answers {response.status}")
            body = bytearray()
            async for chunk in response.content.iter_chunked(_CHUNK):
                body += chunk
                if len(body) > MOST_BYTES:
                    raise ValueError(f"it answers more than {MOST_BYTES} bytes")
            return bytes(body)


def readings(body: bytes) -> dict[Pod, Reading]:
    """What Prometheus' answer (a matrix) says of each pod, by its newest samples.

    A pod whose figures make no sense is left out. Raises ValueError for what is no such answer.
    """
    answer = json.loads(body)
    data = answer.get("data") if isinstance(answer, dict) else None
    result = data.get("result") if isinstance(data, dict) else None
    if not isinstance(result, list):
        raise ValueError("its answer is no matrix")
    pods: dict[Pod, dict[str, list[Sample]]] = {}
    newest: dict[Pod, float] = {}
    for series in result:
        read = _series(series)
        if read is None:
            continue
        pod, at, sample = read
        pods.setdefault(pod, {}).setdefault(sample.name, []).append(sample)
        newest[pod] = max(newest.get(pod, at), at)
    return {
        pod: Reading(counters, newest[pod])
        for pod, found in pods.items()
        if (counters := tokens_of(found)) is not None
    }


def _series(series: Any) -> tuple[Pod, float, Sample] | None:
    """Pod, time and sample of one series; None for one that is not as it should be."""
    try:
        labels = dict(series["metric"])
        at, text = series["values"][-1]
        value, at = float(text), float(at)
        name, pod = labels.pop("__name__"), (labels["namespace"], labels["pod"])
    except (KeyError, IndexError, TypeError, ValueError):
        return None
    if not 0 <= value <= MOST_COUNTED or sum(map(len, map(str, labels.values()))) > LONGEST_LINE:
        return None
    return pod, at, Sample(name, labels, value)
