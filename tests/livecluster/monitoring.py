"""A real Prometheus and a real Alertmanager beside the cluster, and who is told of alerts.

Prometheus finds kvtier's pods as the chart's PodMonitors say, by a ServiceAccount that may look at
the pods of one namespace and at nothing else. Its rules are the chart's; only times are shortened.
"""

import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socket import socket
from typing import Any, Final

import yaml

from livecluster.api import Object
from livecluster.cluster import LiveCluster
from livecluster.discovery import Account, Find, http_sd, kubernetes_sd, name_of
from livecluster.installation import CHART, NAMESPACE, RELEASE
from livecluster.serving import Quiet, serving
from livecluster.waiting import eventually
from programs import end

RULES: Final = CHART / "rules" / "kvtier.yaml"
ACCOUNT: Final = "test-prometheus"
START_SECONDS: Final = 30.0
SCRAPES: Final = "3s"
LOOKS: Final = "1s"
"""Between two scrapes, and two evaluations of the rules. Each must end within its interval, on a
busy machine too."""
_WINDOW: Final = re.compile(r"\[(\d+[smhd])\]|offset (\d+[smhd])")


@dataclass(frozen=True, slots=True)
class Row:
    """One series of an answer."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Notice:
    """What the receiver was told of one alert; ``at`` is when, in seconds since the epoch, and
    ``status`` is ``firing`` or ``resolved``."""

    at: float
    status: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]

    def is_of(self, alert: str, labels: Mapping[str, str]) -> bool:
        return self.labels.items() >= {"alertname": alert, **labels}.items()


@dataclass(slots=True)
class Monitoring:
    """``url`` is Prometheus', ``alertmanager`` the other's. ``notices`` are all that reached the
    receiver, oldest first."""

    url: str
    alertmanager: str
    notices: list[Notice] = field(default_factory=list)

    def query(self, expr: str) -> list[Row]:
        """The PromQL expression's value now. Raises AssertionError with what Prometheus says."""
        data = self._get("query", query=expr)
        if data["resultType"] == "scalar":
            return [Row({}, float(data["result"][1]))]
        return [Row(each["metric"], float(each["value"][1])) for each in data["result"]]

    def targets(self) -> dict[str, str]:
        """By pod and port: whether it is ``up``, or why not."""
        active = self._get("targets", state="active")["activeTargets"]
        return {
            f"{each['discoveredLabels']['__meta_kubernetes_pod_name']} {each['scrapeUrl']}": (
                each["lastError"] or each["health"]
            )
            for each in active
        }

    def rules(self) -> dict[str, str]:
        """By alert or recorded series: ``ok``, or what went wrong when last evaluated."""
        return {
            rule["name"]: rule.get("lastError") or rule["health"]
            for group in self._get("rules")["groups"]
            for rule in group["rules"]
        }

    def now(self, alert: str, **labels: str) -> Notice | None:
        """The last that was told of it, None if nothing was."""
        found = [notice for notice in self.notices if notice.is_of(alert, labels)]
        return found[-1] if found else None

    def wait(self, status: str, alert: str, *, seconds: float, **labels: str) -> Notice:
        """Until the last that was told of it has this status."""

        def told() -> Notice | None:
            last = self.now(alert, **labels)
            return last if last and last.status == status else None

        return eventually(
            told,
            seconds=seconds,
            what=f"{alert} {labels} is {status}",
            detail=lambda: self._state(alert),
        )

    def _state(self, alert: str) -> object:
        """What there is of it in Prometheus, for a message."""
        pending = [row.labels for row in self.query(f'ALERTS{{alertname="{alert}"}}')]
        return {"rule": self.rules().get(alert), "alerts": pending, "targets": self.targets()}

    def _get(self, path: str, **parameters: str) -> Any:
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as reply:
                return json.load(reply)["data"]
        except urllib.error.HTTPError as refused:
            raise AssertionError(f"{parameters}: {refused.read().decode()}") from refused


@contextmanager
def monitoring(
    cluster: LiveCluster,
    directory: Path,
    *,
    held: str = "2s",
    windows: Mapping[str, str] | None = None,
    settings: Sequence[str] = (),
    program: Path | None = None,
) -> Iterator[Monitoring]:
    """Both run on loopback until the block ends, and scrape what is installed.

    ``program`` is a Prometheus with kubernetes_sd. Debian's has none, and is told the same by
    http_sd.

    ``held`` is every rule's ``for``. ``windows`` shortens ranges and offsets of the rules, such as
    ``{"1h": "30s"}``; others stay. ``settings`` are those of the chart for which PodMonitors are
    made, as for ``--set``.
    """
    port, alerting = _free_port(), _free_port()
    rules, config = directory / "rules.yaml", directory / "prometheus.yaml"
    rules.write_text(yaml.safe_dump(shortened(RULES.read_text(), held=held, windows=windows)))
    found = Monitoring(url=f"http://127.0.0.1:{port}", alertmanager=f"http://127.0.0.1:{alerting}")
    account = _account(cluster)
    finding = kubernetes_sd(account, directory) if program else http_sd(account)
    with (
        finding as find,
        _receiver(found.notices) as receiver,
        _alertmanager(directory, port=alerting, receiver=receiver),
    ):
        jobs = [_job(monitor, find=find) for monitor in _monitors(cluster, settings)]
        config.write_text(_config(rules, jobs=jobs, alertmanager=f"127.0.0.1:{alerting}"))
        with _running(
            str(program or "prometheus"),
            f"--config.file={config}",
            f"--storage.tsdb.path={directory / 'prometheus'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=warn",
            log=directory / "prometheus.log",
            ready=f"{found.url}/-/ready",
        ):
            eventually(
                lambda: "up" in found.targets().values(),
                seconds=START_SECONDS,
                what="Prometheus reads a pod of kvtier's",
                detail=found.targets,
            )
            yield found


def _config(rules: Path, *, jobs: list[dict[str, Any]], alertmanager: str) -> str:
    return yaml.safe_dump(
        {
            "global": {"scrape_interval": SCRAPES, "evaluation_interval": LOOKS},
            "rule_files": [str(rules)],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]},
            "scrape_configs": jobs,
        }
    )


def shortened(text: str, *, held: str, windows: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The rules with another ``for``, and shorter ranges where ``windows`` has them."""

    def short(match: re.Match[str]) -> str:
        whole, old = match[0], match[1] or match[2]
        return whole.replace(old, (windows or {}).get(old, old))

    rules: dict[str, Any] = yaml.safe_load(text)
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule["expr"] = _WINDOW.sub(short, rule["expr"])
            if "for" in rule:
                rule["for"] = held
    return rules


def _monitors(cluster: LiveCluster, settings: Sequence[str]) -> list[Object]:
    """The chart's PodMonitors, as it would make them here."""
    text = cluster.run(
        *("helm", "template", RELEASE, str(CHART), "--namespace", NAMESPACE),
        "--set=monitoring.podMonitor.enabled=true",
        *(f"--set={setting}" for setting in settings),
    )
    return [each for each in yaml.safe_load_all(text) if each and each["kind"] == "PodMonitor"]


def _job(monitor: Object, *, find: Find) -> dict[str, Any]:
    """What the Prometheus operator makes of a PodMonitor with one port."""
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    selected = {
        **{
            f"pod_label_{name_of(k)}": v
            for k, v in monitor["spec"]["selector"]["matchLabels"].items()
        },
        "pod_container_port_name": endpoint["port"],
        # Pods that have ended are no targets.
        "pod_phase": "Pending|Running",
    }
    named = {"namespace": "namespace", "pod": "pod_name", "container": "pod_container_name"}
    return {
        "job_name": monitor["metadata"]["name"],
        "metrics_path": endpoint["path"],
        "honor_labels": endpoint.get("honorLabels", False),
        **find(monitor["metadata"]["namespace"]),
        "relabel_configs": [
            *(
                {"action": "keep", "source_labels": [f"__meta_kubernetes_{name}"], "regex": value}
                for name, value in selected.items()
            ),
            *(
                {"source_labels": [f"__meta_kubernetes_{source}"], "target_label": target}
                for target, source in named.items()
            ),
        ],
    }


def _account(cluster: LiveCluster) -> Account:
    """One that may find pods in kvtier's namespace: no more is needed to scrape."""
    metadata = {"name": ACCOUNT, "namespace": NAMESPACE}
    rbac = "rbac.authorization.k8s.io"
    right = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    role = {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": metadata, "rules": [right]}
    binding = {
        "apiVersion": f"{rbac}/v1",
        "kind": "RoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": rbac, "kind": "Role", "name": ACCOUNT},
        "subjects": [{"kind": "ServiceAccount", **metadata}],
    }
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}
    cluster.apply([account, role, binding])
    return Account(
        url=cluster.facts["server"],
        ca=Path(cluster.facts["state"]) / "pki" / "ca.crt",
        token=cluster.kubectl("create", "token", ACCOUNT, "-n", NAMESPACE, "--duration=6h").strip(),
    )


@contextmanager
def _alertmanager(directory: Path, *, port: int, receiver: str) -> Iterator[None]:
    config = directory / "alertmanager.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "route": {
                    # Each alert for itself, and at once.
                    "receiver": "test",
                    "group_by": ["..."],
                    "group_wait": "0s",
                    "group_interval": "1s",
                    "repeat_interval": "24h",
                },
                "receivers": [
                    {"name": "test", "webhook_configs": [{"url": receiver, "send_resolved": True}]}
                ],
            }
        )
    )
    with _running(
        "prometheus-alertmanager",
        f"--config.file={config}",
        f"--storage.path={directory / 'alertmanager'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
        "--log.level=warn",
        log=directory / "alertmanager.log",
        ready=f"http://127.0.0.1:{port}/-/ready",
    ):
        yield


@contextmanager
def _receiver(notices: list[Notice]) -> Iterator[str]:
    """Where Alertmanager tells; yields the address."""

    class Handler(Quiet, BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            notices.extend(
                Notice(time.time(), each["status"], each["labels"], each["annotations"])
                for each in body["alerts"]
            )
            self.send_response(200)
            self.end_headers()

    with serving(Handler) as address:
        yield address


@contextmanager
def _running(program: str, *arguments: str, log: Path, ready: str) -> Iterator[None]:
    """A process until the block ends, once it says that it is ready."""
    binary = shutil.which(program)
    assert binary, f"{program} is missing: `deploy/local/cluster build` installs it"
    with log.open("w") as output:
        process = subprocess.Popen([binary, *arguments], stdout=output, stderr=output)
    try:
        eventually(
            lambda: process.poll() is not None or _answers(ready),
            seconds=START_SECONDS,
            what=f"{program} is ready",
            detail=lambda: log.read_text()[-2000:],
        )
        assert process.poll() is None, f"{program} ended: {log.read_text()[-2000:]}"
        yield
    finally:
        end(process)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def _free_port() -> int:
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
