"""Alerts about tiers, as a Prometheus or an Alertmanager has them."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
from yarl import URL

from kvtier.cli.changes import NORMAL, WARNING
from kvtier.cli.watch_changes import Line

OURS: Final = ("KVTier", "KVCacheTier")
"""What kvtier's alerts are named by; those without a tier are about the operator."""
_SECONDS: Final = 10.0
_MOST_BYTES: Final = 16 << 20


class NoAlerts(Exception):
    """Why there is no answer, in one line."""


@dataclass(frozen=True, slots=True)
class Source:
    """``path`` is that of the alerts below the server's ``url``."""

    name: str
    url: str
    path: str

    @property
    def shown(self) -> str:
        """For people: who asks may be named in the URL, with a password."""
        return str(URL(self.url).with_user(None))


@dataclass(frozen=True, slots=True)
class Alert:
    """``state`` is pending, firing, or suppressed by a silence."""

    name: str
    labels: tuple[tuple[str, str], ...]
    state: str
    severity: str
    summary: str

    def line(self, said: str) -> Line:
        """``said`` is what became of it."""
        labels = dict(self.labels)
        return Line(
            kind="Alert",
            message=f"alert {self.name} {said}{': ' if self.summary else ''}{self.summary}",
            namespace=labels.get("namespace", ""),
            tier=labels.get("tier", ""),
            severity=NORMAL if said == "is over" else WARNING,
            reason=self.name,
        )


def prometheus(url: str) -> Source:
    return Source("Prometheus", url.rstrip("/"), "/api/v1/alerts")


def alertmanager(url: str) -> Source:
    return Source("Alertmanager", url.rstrip("/"), "/api/v2/alerts?inhibited=true&silenced=true")


async def read(source: Source, *, namespace: str, tier: str) -> dict[object, Alert]:
    """Those about the tier (all of the namespace, of all, where these are empty), and about the
    operator; by what tells them apart. Raises NoAlerts."""
    try:
        timeout = aiohttp.ClientTimeout(total=_SECONDS)
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=True) as session,
            session.get(source.url + source.path) as response,
        ):
            raw = await response.content.read(_MOST_BYTES)
            while not response.content.at_eof():
                raw += await response.content.read(_MOST_BYTES)
                if len(raw) > _MOST_BYTES:
                    raise NoAlerts(f"{source.name}: its answer is larger than 16 MiB")
            if response.status != 200:
                raise NoAlerts(f"{source.name}: {source.shown} answers {response.status}")
            found = json.loads(raw)
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise NoAlerts(f"{source.name}: {source.shown} cannot be read: {error}") from None
    except ValueError:
        raise NoAlerts(f"{source.name}: {source.shown} answers with something else") from None
    return {
        (each.name, each.labels): each
        for each in alerts(found)
        if _is_about(dict(each.labels), name=each.name, namespace=namespace, tier=tier)
    }


def alerts(found: Any) -> Iterator[Alert]:
    """Of an answer of either server; what has not the form of an alert is left out."""
    if isinstance(found, Mapping):
        data = found.get("data")
        found = data.get("alerts") if isinstance(data, Mapping) else None
    for each in found if isinstance(found, list) else ():
        labels, notes = each.get("labels") or {}, each.get("annotations") or {}
        status = each.get("status") or {}
        state = each.get("state") or status.get("state") or ""
        if "alertname" in labels:
            yield Alert(
                name=str(labels["alertname"]),
                labels=tuple(sorted((str(name), str(value)) for name, value in labels.items())),
                state="firing" if state == "active" else str(state),
                severity=str(labels.get("severity", "")),
                summary=" ".join(str(notes.get("summary", "")).split()),
            )


def changes(before: Mapping[object, Alert], after: Mapping[object, Alert]) -> Iterator[Line]:
    """What began, changed its state, or is over."""
    for key, alert in after.items():
        if key not in before or before[key].state != alert.state:
            severity = f" ({alert.severity})" if alert.severity else ""
            yield alert.line(f"is {alert.state}{severity}")
    for key, alert in before.items():
        if key not in after:
            yield alert.line("is over")


def _is_about(labels: Mapping[str, str], *, name: str, namespace: str, tier: str) -> bool:
    if "tier" not in labels:
        return name.startswith(OURS)
    return namespace in ("", labels.get("namespace")) and tier in ("", labels["tier"])
