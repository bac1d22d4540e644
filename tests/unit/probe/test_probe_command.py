"""``kvtier probe-worker`` as the Job runs it."""

import signal
import subprocess
import time
from pathlib import Path

import pytest
from command_line import PROGRAM, kvtier, kvtier_process, one_line
from probed_ranks import NewRanks
from secret_directory import write_secret

from kvtier.probe.result import MOST_BYTES, ProbeResult, parse
from kvtier.redact import new_token


def test_the_result_is_written_where_the_kubelet_looks_for_it(
    make_ranks: NewRanks, tmp_path: Path
) -> None:
    secret = write_secret(tmp_path / "secret", make_ranks(2).config())
    log = tmp_path / "termination-log"
    done = kvtier_process(
        "probe-worker", "--secret-dir", secret, "--node", "gpu-7", "--result", log
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == b""
    found = parse(log.read_text())
    assert isinstance(found, ProbeResult)
    assert found.node == "gpu-7"
    assert log.stat().st_size <= MOST_BYTES


def test_without_figures_it_exits_1_and_the_result_says_why(
    make_ranks: NewRanks, tmp_path: Path
) -> None:
    token = new_token()
    secret = write_secret(tmp_path / "secret", make_ranks(1).config(password=token))
    done = kvtier_process("probe-worker", "--secret-dir", secret)
    assert done.returncode == 1
    found = parse(done.stdout.decode().strip())
    assert isinstance(found, ProbeResult)
    assert found.troubles[0].text.startswith("WRONGPASS")
    assert done.stderr.decode().startswith("kvtier: rank 0: WRONGPASS")
    assert token.encode() not in done.stdout + done.stderr


def test_sigterm_ends_it_with_a_result(make_ranks: NewRanks, tmp_path: Path) -> None:
    ranks = make_ranks(1)
    config = ranks.config(seconds=60.0, max_bytes=1 << 40)
    secret = write_secret(tmp_path / "secret", config)
    process = subprocess.Popen(
        [PROGRAM, "probe-worker", "--secret-dir", secret], stdout=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not ranks.keys(0) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    found = parse(output.strip())
    assert isinstance(found, ProbeResult)
    assert found.troubles[0].text == "the probe was stopped"
    assert ranks.keys(0) == []


@pytest.mark.parametrize(
    ("file", "content", "names"),
    [
        ("probe.json", None, "probe.json"),
        ("probe.json", "{}", "probe.json"),
        ("probe.json", "\udcff", "secret"),
        ("token", None, "token"),
        ("token", "", "token"),
        ("ca.crt", "no PEM", "ca.crt"),
        ("ca.crt", None, "ca.crt"),
    ],
)
def test_a_secret_that_cannot_be_used_is_one_line(
    file: str, content: str | None, names: str, make_ranks: NewRanks, tmp_path: Path
) -> None:
    secret = write_secret(tmp_path / "secret", make_ranks(1).config(ca="PEM"))
    if content is None:
        (secret / file).unlink()
    else:
        (secret / file).write_text(content, errors="surrogateescape")
    assert names in one_line(kvtier("probe-worker", "--secret-dir", secret))


def test_it_is_not_in_the_list_of_commands() -> None:
    assert b"probe-worker" not in kvtier("--help").stdout.replace(b"{", b"").split(b"\n\n")[-1]
