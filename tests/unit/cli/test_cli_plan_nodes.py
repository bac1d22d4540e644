"""``kvtier plan`` with nodes and links from files: the checks of the place, without a cluster."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import kvtier, one_line
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pool_objects import Body, engine, listed, node, rank

TierFile = Callable[..., Path]
LINKS = [
    {"domain": "hostname", "bitsPerSecond": "100G", "roundTrip": "10us"},
    {"domain": "zone", "bitsPerSecond": "25G", "roundTrip": "50us"},
]
ENGINES = (engine("e0", "n0"), engine("e1", "n1"))
TOGETHER = (node("n0"), node("n1"), *ENGINES, *(rank(k, "n0") for k in range(8)))


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    def write(*objects: Body, form: str = "json") -> Path:
        file = tmp_path / f"nodes.{form}"
        text = json.dumps(listed(*objects))
        file.write_text(text if form == "json" else yaml.safe_dump(json.loads(text)))
        return file

    return write


def planned(file: Path, nodes: Path, *arguments: str | Path) -> dict[str, Any]:
    done = kvtier("plan", "-f", file, "--nodes", nodes, "-o", "json", *arguments)
    assert done.stderr == b"", done.stderr
    content: dict[str, Any] = json.loads(done.stdout)
    return content


def reasons(content: dict[str, Any]) -> list[str]:
    return [found["reason"] for found in content["findings"]]


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_a_tier_in_one_place_has_no_finding_about_it(
    tier_file: TierFile, written: Callable[..., Path], form: str
) -> None:
    content = planned(tier_file(), written(*TOGETHER, form=form))
    assert content["nodes"] == 2
    assert content["engines"] == {"total": 2, "ready": 2}
    assert content["domain"] == "zone=a"
    assert content["rankStates"] == [{"rank": k, "node": "n0"} for k in range(8)]
    assert reasons(content) == []


def test_the_nodes_decide_which_link_hits_cross(
    tier_file: TierFile, written: Callable[..., Path]
) -> None:
    file = tier_file({"placement.links": LINKS})
    near = written(node("n0"), engine("e0", "n0"), *(rank(k, "n0") for k in range(8)))
    assert planned(file, near)["measured"]["bytesPerSecond"] == 12_500_000_000
    far = written(node("n0"), node("n1"), engine("e0", "n1"), *(rank(k, "n0") for k in range(8)))
    assert planned(file, far)["measured"]["bytesPerSecond"] == 3_125_000_000


def test_a_link_that_no_hit_crosses_judges_none(
    tier_file: TierFile, written: Callable[..., Path]
) -> None:
    file = tier_file({"placement.links": LINKS[:1]})
    far = written(node("n0"), node("n1"), engine("e0", "n1"), *(rank(k, "n0") for k in range(8)))
    content = planned(file, far)
    assert (content["verdict"], content["reason"]) == ("Unknown", "LinkNotDeclared")
    assert "declare one for zone" in content["message"]
    given = planned(file, far, "--what-if", "bandwidth=25G,roundTrip=50us")
    assert (given["verdict"], given["measured"]["bytesPerSecond"]) == ("PaysWhenLong", 3.125e9)
    half = one_line(kvtier("plan", "-f", file, "--nodes", far, "--what-if", "bandwidth=25G"))
    assert "--what-if roundTrip: missing, and the tier declares no link that hits cross" in half


@pytest.mark.parametrize(
    ("objects", "changes", "reason"),
    [
        (
            (node("n0"), node("n1", "b"), *ENGINES, engine("e2", "n0")),
            {},
            "PoolSpansDomains",
        ),
        ((*TOGETHER[:1], node("n1", "b"), *ENGINES[:1], rank(0, "n1")), {}, "RanksOutsideDomain"),
        ((node("n0", cordoned=True), *TOGETHER[1:]), {}, "RanksOnCordonedNodes"),
        ((node("n0"), node("n1", ""), *TOGETHER[2:]), {}, "DomainLabelsMissing"),
        ((node("n0", memory="100Gi"), node("n1", memory="100Gi")), {}, "MemoryDoesNotFit"),
        ((node("n0"),), {"store.nodeSelector": {"disk": "none"}}, "MemoryDoesNotFit"),
    ],
)
def test_the_checks_of_the_place_are_those_of_the_cluster(
    tier_file: TierFile,
    written: Callable[..., Path],
    objects: tuple[Body, ...],
    changes: dict[str, Any],
    reason: str,
) -> None:
    content = planned(tier_file(changes), written(*objects))
    assert reason in reasons(content)


def test_what_engines_request_is_not_there_for_ranks(
    tier_file: TierFile, written: Callable[..., Path]
) -> None:
    free = planned(tier_file(), written(node("n0", memory="512Gi")))
    assert reasons(free) == []
    held = planned(tier_file(), written(node("n0", memory="512Gi"), engine("e0", "n0")))
    assert reasons(held) == ["MemoryDoesNotFit"]
    message = held["findings"][0]["message"]
    assert message.startswith("8 ranks of 64 GiB have no node, and at most 6 fit")


def test_people_see_where_the_tier_runs(tier_file: TierFile, written: Callable[..., Path]) -> None:
    file = written(*TOGETHER)
    lines = kvtier("plan", "-f", tier_file(), "--nodes", file).stdout.decode().splitlines()
    assert (
        f"  nodes            2 of {file}: 2 engines (2 Ready) on 2 of them, 8 of 8 ranks on 1"
        in lines
    )
    assert "  ranks belong in  zone=a" in lines
    alone = written(node("n0"))
    shown = kvtier("plan", "-f", tier_file(), "--nodes", alone).stdout.decode()
    assert "no engine, no rank yet" in shown
    assert "no domain yet: no Ready engine chooses one" in shown


def test_pods_of_others_are_not_the_pools(
    tier_file: TierFile, written: Callable[..., Path]
) -> None:
    other = engine("x", "n0", namespace="elsewhere")
    finished = engine("done", "n0")
    finished["status"]["phase"] = "Succeeded"
    unlabelled = engine("y", "n0")
    unlabelled["metadata"]["labels"] = {"kvtier.dev/tier": "another"}
    content = planned(
        tier_file(), written(node("n0"), ENGINES[0], other, finished, unlabelled, rank(9, "n0"))
    )
    assert content["engines"]["total"] == 1
    assert content["rankStates"] == []


def test_pods_of_two_tiers_of_the_name_are_one_line(
    tier_file: TierFile, written: Callable[..., Path]
) -> None:
    nodes = written(node("n0"), engine("e", "n0"), engine("e", "n0", namespace="elsewhere"))
    file = tier_file()
    file.write_text(file.read_text().replace("  namespace: models\n", ""))
    said = one_line(kvtier("plan", "-f", file, "--nodes", nodes))
    assert said.endswith("in 2 namespaces; write metadata.namespace into the tier")


def test_lists_of_one_kind_and_streams_of_documents_are_read_too(
    tier_file: TierFile, tmp_path: Path
) -> None:
    nodes = tmp_path / "nodes.yaml"
    items = [{key: value for key, value in node("n0").items() if key in ("metadata", "status")}]
    documents = [{"kind": "NodeList", "items": items}, node("n1"), ENGINES[0], None]
    nodes.write_text(yaml.safe_dump_all(documents))
    content = planned(tier_file(), nodes)
    assert (content["nodes"], content["engines"]["total"]) == (2, 1)


def test_standard_input_takes_one_of_the_files(tier_file: TierFile) -> None:
    text = json.dumps(listed(node("n0"))).encode()
    done = kvtier("plan", "-f", tier_file(), "--nodes", "-", stdin=text)
    assert b"1 of standard input: " in done.stdout
    said = one_line(kvtier("plan", "-f", "-", "--nodes", "-", stdin=text))
    assert said == "-: is both --file and --nodes; name a file for one of them"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"", "no Node in it; write what `kubectl get nodes -o yaml` prints"),
        (b"[]", "no Node in it"),
        (b"{", ": line 2 "),
        (b"a: [", ": line 2 "),
        (b"\xff\xfe\x00", "not UTF-8 text"),
        (b"[" * 100_000, "nest"),
        (b'{"kind": "List", "items": [{"kind": "Pod"}]}', "no Node in it"),
        (b'{"kind": "Node", "metadata": {"name": 7}}', "no Node in it"),
        (b"No resources found\n", "no Node in it"),
    ],
)
def test_a_bad_file_of_nodes_is_one_line(
    tier_file: TierFile, tmp_path: Path, text: bytes, complaint: str
) -> None:
    nodes = tmp_path / "nodes"
    nodes.write_bytes(text)
    said = one_line(kvtier("plan", "-f", tier_file(), "--nodes", nodes))
    assert said.startswith(f"{nodes}:")
    assert complaint in said


def test_a_file_that_is_not_there_is_one_line(tier_file: TierFile) -> None:
    for flag in ("--nodes", "--links"):
        said = one_line(kvtier("plan", "-f", tier_file(), flag, "none.yaml"))
        assert said == "none.yaml: No such file or directory; name a readable file"


WORDS = """metadata spec status name labels taints conditions type key allocatable memory containers
resources requests nodeName phase items kind kubernetes.io/hostname topology.kubernetes.io/zone"""
JUNK = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(WORDS.split()) | st.text(max_size=3),
            inner,
            max_size=4,
        )
    ),
    max_leaves=25,
)


def spoiled(body: Any, junk: Any, path: list[int]) -> Any:
    """The object with ``junk`` in place of one of its values."""
    if not path or not isinstance(body, dict | list) or not body:
        return junk
    keys = list(body) if isinstance(body, dict) else range(len(body))
    key = keys[path[0] % len(keys)]
    copy = dict(body) if isinstance(body, dict) else list(body)
    copy[key] = spoiled(body[key], junk, path[1:])  # type: ignore[index]
    return copy


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    junk=JUNK,
    which=st.integers(0, len(TOGETHER) - 1),
    path=st.lists(st.integers(0, 9), max_size=6),
    quantity=st.from_regex(r"[0-9]{1,260}(Ki|Pi|m|)", fullmatch=True),
)
def test_nothing_in_a_file_raises(
    tier_file: TierFile,
    written: Callable[..., Path],
    junk: Any,
    which: int,
    path: list[int],
    quantity: str,
) -> None:
    objects = list(TOGETHER)
    objects[which] = spoiled(objects[which], junk, path)
    file = written(*objects, junk, node("n9", memory=quantity))
    done = kvtier("plan", "-f", tier_file(), "--nodes", file)
    assert done.returncode in (0, 1, 2, 3, 4)
    done.stdout.decode()


@pytest.mark.parametrize("name", ["n\ud800", "n\n\x1b[2J", "n" * 300])
def test_a_name_that_no_node_can_have_is_not_printed(
    tier_file: TierFile, written: Callable[..., Path], name: str
) -> None:
    file = written(*TOGETHER[1:], node(name, cordoned=True), rank(0, name))
    done = kvtier("plan", "-f", tier_file(), "--nodes", file)
    assert done.returncode == 0, done.stderr
    assert name.encode(errors="replace") not in done.stdout


def test_links_of_a_file_take_the_place_of_the_tiers(tier_file: TierFile, tmp_path: Path) -> None:
    links = tmp_path / "links.yaml"
    links.write_text(yaml.safe_dump(LINKS[:1]))
    for changes in ({}, {"placement": None}):
        done = kvtier("plan", "-f", tier_file(changes), "--links", links)
        shown = done.stdout.decode()
        assert "100 Gb/s, round trip 0.01 ms (hostname, declared)" in shown
        assert f"The figures of the file and of {links}, not measured ones." in shown


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{}", "not a list of links; write one such as [{domain: zone, "),
        ("[]", "not a list of links"),
        ("", "0 documents; write exactly one list, as placement.links has it"),
        ("- {domain: rack, bitsPerSecond: 25G, roundTrip: 50us}", "[0].domain: 'rack' is no"),
        ("- {domain: zone, bitsPerSecond: 25, roundTrip: 50us}", "[0].bitsPerSecond: 25 is not"),
        ("- {domain: zone, bitsPerSecond: 25G}", "[0].roundTrip: missing; add it"),
        ("- {domain: zone, bitsPerSecond: 25G, roundTrip: 1us, rtt: 1}", "[0].rtt: unknown field"),
        ("- {domain: zone, domain: zone}", " line 1 key 'domain' is there twice; keep one"),
        (
            "[{domain: zone, bitsPerSecond: 25G, roundTrip: 50us},"
            " {domain: zone, bitsPerSecond: 25G, roundTrip: 50us}]",
            "domain zone is there twice; keep one",
        ),
    ],
)
def test_a_bad_file_of_links_is_one_line(
    tier_file: TierFile, tmp_path: Path, text: str, complaint: str
) -> None:
    links = tmp_path / "links.yaml"
    links.write_text(text)
    said = one_line(kvtier("plan", "-f", tier_file(), "--links", links))
    assert said.startswith(f"{links}:")
    assert complaint in said


def test_what_if_changes_the_link_that_hits_cross(
    tier_file: TierFile, written: Callable[..., Path]
) -> None:
    file = tier_file({"placement.links": LINKS})
    near = written(node("n0"), engine("e0", "n0"), *(rank(k, "n0") for k in range(8)))
    content = planned(file, near, "--what-if", "roundTrip=2ms")
    assert content["measured"]["bytesPerSecond"] == 12_500_000_000
    assert content["measured"]["roundTripSeconds"] == pytest.approx(0.002)


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--live", "--nodes", "n.yaml"), "--nodes: and a cluster too; leave out one of them"),
        (("--context", "c", "--nodes", "n.yaml"), "--nodes: and a cluster too"),
        (("-n", "models"), "--namespace: says nothing without a cluster; add --live"),
        (("--kubeconfig", "k"), "--kubeconfig: says nothing without a cluster; add --live"),
    ],
)
def test_flags_that_contradict_each_other_are_one_line(
    tier_file: TierFile, flags: tuple[str, ...], complaint: str
) -> None:
    assert one_line(kvtier("plan", "-f", tier_file(), *flags)).startswith(complaint)
