"""What the local cluster's commands say; nothing is started."""

import json
import os
import subprocess
import sys
from pathlib import Path

LOCAL = Path(__file__).parents[3] / "deploy" / "local"
sys.path.insert(0, str(LOCAL))

from localcluster import build  # noqa: E402
from localcluster.processes import Records  # noqa: E402

sys.path.remove(str(LOCAL))


def cluster(
    state: Path, *arguments: str, instances: tuple[str, ...] = ()
) -> "subprocess.CompletedProcess[str]":
    """Run a command beside instances whose control plane is this process."""
    for offset, name in enumerate(instances):
        records = Records(state / name / "pids")
        records.add(name="machine-control-plane", pid=os.getpid())
        row = {"name": name, "offset": offset}
        (state / name / "cluster.json").write_text(json.dumps(row))
    return subprocess.run(
        [LOCAL / "cluster", *arguments],
        env=os.environ | {"KVTIER_STATE": str(state)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_cluster_that_does_not_run_is_one_line_that_names_those_that_do(tmp_path: Path) -> None:
    done = cluster(tmp_path, "env", instances=("demo", "tell"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "cluster: cluster kvtier does not run: start it by `cluster up`, or give one that does: "
        "--name demo or tell\n"
    )


def test_without_any_the_line_names_the_command_that_starts_it(tmp_path: Path) -> None:
    done = cluster(tmp_path, "env", "--name", "demo")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "cluster: cluster demo does not run: start it by `cluster up --name demo`\n"
    )


def test_the_lines_for_the_shell_bring_kvtier_too(tmp_path: Path) -> None:
    done = cluster(tmp_path, "env", "--name", "demo", instances=("demo",))
    assert done.returncode == 0, done.stderr
    script = f"{done.stdout}\ncommand -v kvtier; echo $KUBECONFIG"
    said = subprocess.run(
        ["bash", "-c", script],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.split() == [
        str(LOCAL.parents[1] / ".venv/bin/kvtier"),
        str(tmp_path / "demo" / "kubeconfig"),
    ]


LOG = "go: downloading k8s.io/api v0.37.2\ninternal/cpu\nk8s.io/api/core/v1\n"


def test_progress_names_what_is_compiled_and_how_much_of_it() -> None:
    assert build.progress(LOG, total=2100) == (
        "2 packages compiled of 2,100 at most, now k8s.io/api/core/v1"
    )
    assert build.progress("go: downloading x v1\n", total=None) == "nothing compiled yet"


def test_a_failed_build_is_told_by_its_error_and_not_by_a_package() -> None:
    log = f"{LOG}# x/y\n./y.go:3:1: undefined: z\nk8s.io/klog\n"
    assert build.failure(log) == "./y.go:3:1: undefined: z"


def test_what_is_told_of_is_no_part_of_what_is_built() -> None:
    assert not any("-v" in target.command for target in build.targets())
