"""Real shells, and the real kubectl, complete ``kvtier`` with the names of a real API server."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from apiserver_process import ApiServer
from cli_reader import TIERS, account, rule
from controller_process import apply_tier

BIN = Path(sys.executable).parent
SHELLS = [name for name in ("bash", "zsh", "fish") if name == "bash" or shutil.which(name)]
"""bash is everywhere; of the others those that this machine has."""

_ASK = {
    # As readline does it: the words of the line, its last one unfinished, and the function.
    "bash": """
source <(kvtier completion bash)
COMP_LINE="$LINE" COMP_POINT=${#LINE}
read -r -a COMP_WORDS <<<"${LINE//=/ = }"
[[ "$LINE" == *[[:space:]=] ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
compopt() { :; }
__kvtier_complete
printf '%s\\n' "${COMPREPLY[@]}"
""",
    # zsh completes in its line editor only: a terminal is made for it.
    "zsh": """
zmodload zsh/zpty
zpty inner zsh -i
typed() {
    local seen="" piece
    while [[ "$seen" != *"$1"* ]]; do zpty -r inner piece || break; seen+="$piece"; done
    print -rn -- "$seen"
}
typed PREPARED >/dev/null
zpty -w -n inner "$LINE"$'\\t'
zpty -w -n inner $'\\x07'
typed ENDED
""",
    "fish": """
kvtier completion fish | source
complete -C "$LINE"
""",
}

ZSHRC = r"""
PS1= RPS1= TERM=dumb
autoload -Uz compinit && compinit -D -u
source <(kvtier completion zsh)
# What would be offered, on lines of its own, instead of a menu.
compadd() {
    local -a hits
    if [[ "${*%%( -- | - )*}" != *-[OAD]* ]]; then
        builtin compadd -A hits "$@"
        (( $#hits )) && print -rl -- "" "HIT "${^hits}
    fi
    builtin compadd "$@"
}
zle -C ask complete-word _main_complete
bindkey '^I' ask
say-ended() { print "\nENDED"; }
zle -N say-ended
bindkey '^G' say-ended
print PREPARED
"""


@dataclass(frozen=True, slots=True)
class Setup:
    server: ApiServer
    namespace: str
    config: Path
    directory: Path

    def environment(self, config: Path | None = None) -> dict[str, str]:
        kubectl = self.server.kubectl_path.parent
        return {
            "KUBECONFIG": str(config or self.config),
            "PATH": f"{BIN}:{kubectl}:{os.environ['PATH']}",
            "HOME": str(self.directory),
            "TERM": "dumb",
        }

    def ask(self, shell: str, line: str, *, config: Path | None = None) -> set[str]:
        """What the shell would offer behind the line, without descriptions."""
        done = subprocess.run(
            [shell, *(["--norc"] if shell == "bash" else []), "-c", _ASK[shell]],
            env=self.environment(config) | {"LINE": line},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=self.directory,
        )
        lines = [line.strip() for line in done.stdout.replace("\r", "\n").splitlines()]
        if shell == "zsh":
            lines = [each.partition("HIT ")[2] for each in lines if "HIT " in each]
        return {each.partition("\t")[0] for each in lines if each}


@pytest.fixture(scope="module")
def setup(apiserver: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    directory = tmp_path_factory.mktemp("shells")
    namespace = f"shells-{time.monotonic_ns()}"
    assert apiserver.kubectl("create", "namespace", namespace).code == 0
    for name in ("chat", "chat-long", "search"):
        apply_tier(apiserver, namespace, name)
    config = account(apiserver, namespace, "typist", TIERS, view=False, directory=directory)
    (directory / "my-tier.yaml").write_text("")
    (directory / ".zshrc").write_text(ZSHRC)
    yield Setup(server=apiserver, namespace=namespace, config=config, directory=directory)
    apiserver.kubectl("delete", "namespace", namespace, "--wait=false")


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("kvtier st", {"status"}),
        ("kvtier status ch", {"chat", "chat-long"}),
        ("kvtier watch --al", {"--all-namespaces", "--alertmanager"}),
        ("kvtier plan -f my-t", {"my-tier.yaml"}),
    ],
)
def test_a_shell_completes(setup: Setup, shell: str, line: str, found: set[str]) -> None:
    assert setup.ask(shell, line) == found


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("kvtier status ", {"chat", "chat-long", "search"}),
        ("kvtier status chat -o ", {"table", "json", "yaml"}),
        ("kvtier status chat -o j", {"json"}),
        ("kvtier status chat ", set()),
        ("kvtier roll --timeout 5m se", {"search"}),
        ("kvtier nothing ", set()),
        ("kvtier report chat --context ", {"test"}),
    ],
)
def test_a_line_is_completed(setup: Setup, line: str, found: set[str]) -> None:
    assert setup.ask("bash", line) == found


def test_bash_completes_behind_an_equals_sign_which_is_a_word_to_it(setup: Setup) -> None:
    assert setup.ask("bash", "kvtier status --output=j") == {"json"}
    assert setup.ask("bash", "kvtier status --output=") == {"table", "json", "yaml"}


def test_bash_loads_it_without_a_word(setup: Setup) -> None:
    done = subprocess.run(
        ["bash", "--norc", "-euc", "source <(kvtier completion bash); complete -p kvtier"],
        env=setup.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("complete -F __kvtier_complete kvtier\n", "")


def complete(setup: Setup, *words: str, config: Path | None = None) -> list[str]:
    """What kubectl's completion asks: its plugin's program."""
    done = subprocess.run(
        ["kubectl", "__complete", "kvtier", *words],
        env=setup.environment(config),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout.splitlines()


def test_kubectl_runs_kvtier_and_completes_it(setup: Setup) -> None:
    ran = subprocess.run(
        ["kubectl", "kvtier", "status"],
        env=setup.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 1
    assert [line.split()[0] for line in ran.stdout.splitlines()] == (
        ["TIER", "chat", "chat-long", "search"]
    )
    assert complete(setup, "wat")[0].partition("\t")[0] == "watch"
    assert complete(setup, "status", "sea") == ["search", ":4"]


def test_namespaces_are_those_of_tiers_else_all_else_none(setup: Setup, tmp_path: Path) -> None:
    where = setup.namespace
    assert complete(setup, "status", "-n", where[:8], config=setup.server.kubeconfig) == (
        [where, ":4"]
    )
    # Who may not list tiers everywhere may perhaps list namespaces; this one may neither.
    assert complete(setup, "status", "-n", "") == [":4"]
    found = complete(setup, "status", "-n", where, "ch", config=setup.server.kubeconfig)
    assert [line for line in found if line.startswith("chat")] == ["chat", "chat-long"]


def test_a_cluster_that_does_not_answer_costs_seconds_and_no_word(
    setup: Setup, tmp_path: Path
) -> None:
    config = yaml.safe_load(setup.config.read_text())
    # An address that takes connections and says nothing.
    config["clusters"][0]["cluster"]["server"] = "https://192.0.2.1:6443"
    away = tmp_path / "away"
    away.write_text(yaml.safe_dump(config))
    began = time.monotonic()
    assert complete(setup, "status", "", config=away) == [":4"]
    assert time.monotonic() - began < 10
    nobody = account(
        setup.server,
        setup.namespace,
        "nobody",
        rule("get", "pods"),
        view=False,
        directory=tmp_path,
    )
    assert complete(setup, "status", "", config=nobody) == [":4"]
