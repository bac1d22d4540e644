"""Objects, events and metrics as a report has them; a whole one is made in tests/apiserver."""

import os
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kvtier.cli.errors import BadInput
from kvtier.cli.report_bundle import Bundle
from kvtier.cli.report_objects import event_lines, kept, metrics_of
from kvtier.redact import REDACTED, new_token

AT = datetime(2026, 11, 30, 22, 3, 4, tzinfo=UTC)


def test_a_secret_is_refused_whatever_it_holds() -> None:
    with pytest.raises(ValueError, match="no Secret"):
        kept({"kind": "Secret", "metadata": {"name": "a"}})


def test_values_of_variables_are_taken_out_but_for_those_of_engines_and_runtimes() -> None:
    env = [
        {"name": "VLLM_LOGGING_LEVEL", "value": "DEBUG"},
        {"name": "VLLM_API_KEY", "value": "hunter2"},
        {"name": "DATABASE", "value": "hunter2"},
        {"name": "FROM", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ]
    pod = {"spec": {"containers": [{"env": env}], "initContainers": [{"env": env[2:3]}]}}
    workload = {"kind": "StatefulSet", "metadata": {}, "spec": {"template": pod}}
    spec = kept(workload)["spec"]["template"]["spec"]
    assert [each.get("value") for each in spec["containers"][0]["env"]] == (
        ["DEBUG", REDACTED, REDACTED, None]
    )
    assert spec["containers"][0]["env"][3] == env[3]
    assert spec["initContainers"][0]["env"][0]["value"] == REDACTED


def test_what_kubectl_applied_last_is_taken_out() -> None:
    name = "kubectl.kubernetes.io/last-applied-configuration"
    notes = {name: '{"data": {"a": "b"}}', "other": "stays"}
    found = kept({"kind": "Pod", "metadata": {"annotations": notes, "managedFields": [1]}})
    assert found["metadata"] == {"annotations": {name: REDACTED, "other": "stays"}}


def test_of_a_node_stays_what_a_rank_depends_on() -> None:
    node = {
        "kind": "Node",
        "metadata": {"name": "n", "labels": {"zone": "a"}, "annotations": {"x": "y"}},
        "spec": {"taints": [{"key": "t"}], "podCIDR": "10.0.0.0/24"},
        "status": {"images": [1], "conditions": [{"type": "Ready"}], "allocatable": {"cpu": "2"}},
    }
    found = kept(node)
    assert found["metadata"] == {"name": "n", "labels": {"zone": "a"}}
    assert found["spec"] == {"taints": [{"key": "t"}]}
    assert found["status"].keys() == {"conditions", "allocatable"}


def test_events_are_those_of_the_tier_and_of_what_it_owns() -> None:
    def event(kind: str, name: str, at: str) -> dict[str, object]:
        return {
            "metadata": {"name": f"{name}.1"},
            "involvedObject": {"kind": kind, "name": name},
            "type": "Warning",
            "reason": "R",
            "message": "of  it",
            "lastTimestamp": at,
        }

    events = [
        event("Pod", "chat-r0-0", "2026-11-30T20:00:02Z"),
        event("KVCacheTier", "chat", "2026-11-30T20:00:01Z"),
        event("KVCacheTier", "chatty", "2026-11-30T20:00:03Z"),
        event("Pod", "engine-1", "2026-11-30T20:00:04Z"),
    ]
    assert event_lines(events, about=["chat", "engine-1"]).splitlines() == [
        "2026-11-30T20:00:01Z  KVCacheTier/chat  Warning R: of it",
        "2026-11-30T20:00:02Z  Pod/chat-r0-0  Warning R: of it",
        "2026-11-30T20:00:04Z  Pod/engine-1  Warning R: of it",
    ]


def test_metrics_of_other_tiers_are_left_out() -> None:
    text = (
        "# HELP a of a tier\n"
        'a{namespace="serving",tier="chat"} 1\n'
        'a{namespace="serving",tier="other"} 2\n'
        'a{namespace="elsewhere",tier="chat"} 3\n'
        "b 4\n"
    )
    assert metrics_of(text, namespace="serving", tier="chat").splitlines() == [
        "# HELP a of a tier",
        'a{namespace="serving",tier="chat"} 1',
        "b 4",
    ]


def test_a_bundle_redacts_whatever_is_added_and_names_what_it_lacks(tmp_path: Path) -> None:
    token, bundle = new_token(), Bundle("kvtier-report")
    bundle.add("logs/a.log", f"said {token}\n")
    bundle.add_document("b.yaml", {"token": "hunter2", "ranks": 4})
    bundle.lacks("metrics", f"403\n{token}")
    file = tmp_path / "a.tar.gz"
    size = bundle.write(file, tier="serving/chat", version="1", at=AT)
    assert size == file.stat().st_size
    with tarfile.open(file) as archive:
        found = {}
        for each in archive:
            content = archive.extractfile(each)
            assert content is not None
            found[each.name] = content.read().decode()
    assert found["kvtier-report/logs/a.log"] == f"said {REDACTED}\n"
    assert found["kvtier-report/b.yaml"] == f"token: {REDACTED}\nranks: 4\n"
    readme = found["kvtier-report/README.txt"]
    assert "\nNot in it:\n  metrics: 403 <redacted>\n" in readme
    assert "serving/chat, made by kvtier 1 on 2026-11-30T22:03:04Z" in readme


def test_a_bundle_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    bundle = Bundle("kvtier-report")
    (tmp_path / "a.tar.gz").mkdir()
    with pytest.raises(BadInput, match="this is a directory; name a file"):
        bundle.write(tmp_path / "a.tar.gz", tier="t", version="1", at=AT)
    assert [each.name for each in tmp_path.iterdir()] == ["a.tar.gz"]


def test_a_device_stays_one_and_a_file_behind_a_link_is_replaced(tmp_path: Path) -> None:
    pipe, link, file = tmp_path / "pipe", tmp_path / "link", tmp_path / "file"
    os.mkfifo(pipe)
    file.write_text("before")
    link.symlink_to(file)
    with pytest.raises(BadInput, match="this is no regular file; name a file"):
        Bundle("kvtier-report").write(pipe, tier="t", version="1", at=AT)
    assert pipe.is_fifo()
    Bundle("kvtier-report").write(link, tier="t", version="1", at=AT)
    assert link.is_symlink()
    assert tarfile.is_tarfile(file)
    file.unlink()
    file.symlink_to(link)
    with pytest.raises(BadInput, match="its links lead nowhere; name a file"):
        Bundle("kvtier-report").write(link, tier="t", version="1", at=AT)
