"""How a command line can go on: for the shells (``kvtier completion``) and for kubectl.

Printed are the candidates, one a line, each with a description behind a tab where there is one, and
then a line ``:N`` for what the shell is to do beside: the protocol of kubectl's plugins
(``kubectl_complete-NAME``). What a cluster would say is left out when it does not say it soon.
"""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final

from kvtier.cli.errors import BadInput

FILES: Final = 0
"""The shell completes names of files, if there is no candidate."""
NO_FILES: Final = 4
SECONDS: Final = 2.0
"""What a cluster may take: somebody waits with a finger on the key."""

Candidate = tuple[str, str]
_LIVE_TIERS: Final = {"status", "watch", "report", "probe", "roll"}
"""Commands whose name is one of a cluster's tiers."""
_FILES: Final = {"kubeconfig", "file", "nodes", "links", "model_config", "plot", "secret_dir"}
_FILES_OF: Final = {("report", "output")}


def main() -> int:
    """kubectl's ``kubectl_complete-kvtier WORD...``; the last word may be unfinished, or empty."""
    return _print(sys.argv[1:])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="WORD")


def run(arguments: argparse.Namespace) -> int:
    words = arguments.words
    return _print(words[1:] if words[:1] == ["--"] else words)


def _print(words: Sequence[str]) -> int:
    try:
        found, directive = candidates(words or [""])
    except (BadInput, SystemExit, KeyboardInterrupt):
        found, directive = [], NO_FILES
    for word, said in found:
        print(f"{word}\t{said}" if said else word)
    print(f":{directive}")
    return 0


def candidates(words: Sequence[str]) -> tuple[list[Candidate], int]:
    """What the last word can be, behind the others, and what the shell is to do beside."""
    from kvtier.cli.main import COMMANDS, build

    *before, last = words
    if not before:
        top = [("--help", "show help"), ("--version", "print the version and exit")]
        found = list(COMMANDS.items()) if not last.startswith("-") else top
        return _starting(found, last), NO_FILES
    command = before[0]
    if command not in COMMANDS:
        return [], NO_FILES
    actions = _actions_of(build(command), command)
    if "--" not in before:
        option, prefix = _option(actions, before, last)
        if option is not None:
            given = last.removeprefix(prefix)
            return _values(command, option, before=before, last=given, prefix=prefix)
        if last.startswith("-"):
            return _starting(_flags(actions, before), last), NO_FILES
    positional = _positional(actions, before)
    if positional is None:
        return [], NO_FILES
    return _values(command, positional, before=before, last=last)


def _actions_of(parser: argparse.ArgumentParser, command: str) -> list[argparse.Action]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return list(action.choices[command]._actions)
    return []


def _takes_value(action: argparse.Action) -> bool:
    return action.nargs != 0


def _option(
    actions: Sequence[argparse.Action], before: Sequence[str], last: str
) -> tuple[argparse.Action | None, str]:
    """The option whose value is being written, and what of the word is no part of the value."""
    by_name = {name: each for each in actions for name in each.option_strings}
    if last.startswith("--") and "=" in last:
        name, _, _ = last.partition("=")
        found = by_name.get(name)
        return (found, f"{name}=") if found is not None and _takes_value(found) else (None, "")
    found = by_name.get(before[-1])
    return (found, "") if found is not None and _takes_value(found) else (None, "")


def _positional(
    actions: Sequence[argparse.Action], before: Sequence[str]
) -> argparse.Action | None:
    """The positional argument that comes next; None when all are there."""
    by_name = {name: each for each in actions for name in each.option_strings}
    given, value_next = 0, False
    for word in before[1:]:
        if value_next:
            value_next = False
        elif word.startswith("-") and word != "-":
            option = by_name.get(word)
            value_next = option is not None and _takes_value(option)
        else:
            given += 1
    positionals = [each for each in actions if not each.option_strings]
    return positionals[given] if given < len(positionals) else None


def _flags(actions: Sequence[argparse.Action], before: Sequence[str]) -> Iterator[Candidate]:
    """Those that are not there yet, or may be there twice; by their longest name."""
    for action in actions:
        used = any(name in before for name in action.option_strings)
        if action.option_strings and not (used and not isinstance(action.default, list)):
            said = action.help or ""
            if said != argparse.SUPPRESS:
                yield max(action.option_strings, key=len), " ".join(said.split())


def _values(
    command: str, action: argparse.Action, *, before: Sequence[str], last: str, prefix: str = ""
) -> tuple[list[Candidate], int]:
    if action.choices is not None:
        found = [(str(choice), "") for choice in action.choices]
    elif action.dest in _FILES or (command, action.dest) in _FILES_OF:
        return [], FILES
    else:
        found = _of_cluster(command, action, before)
    return [(f"{prefix}{word}", said) for word, said in _starting(found, last)], NO_FILES


def _of_cluster(command: str, action: argparse.Action, before: Sequence[str]) -> list[Candidate]:
    where = {
        "context": _given(before, "--context"),
        "kubeconfig": _given(before, "--kubeconfig"),
    }
    if action.dest == "context":
        return _contexts(where["kubeconfig"])
    if action.dest == "namespace":
        return _ask(_namespaces, where)
    if action.dest == "name" and command in _LIVE_TIERS:
        namespace = _given(before, "-n", "--namespace")
        return _ask(_tiers(namespace), where)
    return []


def _given(before: Sequence[str], *names: str) -> str | None:
    """The value of an option that is there already."""
    for place, word in enumerate(before):
        name, equals, value = word.partition("=")
        if name in names:
            if equals:
                return value
            return before[place + 1] if place + 1 < len(before) else None
    return None


def _contexts(kubeconfig: str | None) -> list[Candidate]:
    from kvtier.cluster.connect import NoCluster, contexts

    try:
        return [(name, "") for name in contexts(kubeconfig=kubeconfig)]
    except NoCluster:
        return []


_Read = Callable[[Any, str], Awaitable[list[Candidate]]]


def _ask(read: _Read, where: dict[str, str | None]) -> list[Candidate]:
    """What a cluster says; nothing if it does not, whatever the reason."""
    from kvtier.cluster.connect import NoCluster, connect, default_namespace
    from kvtier.cluster.protocol import ApiError

    context, kubeconfig = where["context"], where["kubeconfig"]

    async def work() -> list[Candidate]:
        namespace = default_namespace(context=context, kubeconfig=kubeconfig)
        connection = connect(context=context, kubeconfig=kubeconfig, timeout=SECONDS)
        async with connection as cluster, asyncio.timeout(2 * SECONDS):
            return await read(cluster, namespace)

    try:
        return asyncio.run(work())
    except (NoCluster, ApiError, OSError, TimeoutError):
        return []


def _tiers(namespace: str | None) -> _Read:
    from kvtier.cluster.protocol import TIER

    async def read(cluster: Any, usual: str) -> list[Candidate]:
        found = await cluster.list(TIER, namespace or usual)
        return [(body["metadata"]["name"], _about(body)) for body in found]

    return read


def _about(body: dict[str, Any]) -> str:
    status = body.get("status") or {}
    ranks, verdict = status.get("ranks"), status.get("verdict")
    return ", ".join(filter(None, (f"{ranks} ranks" if ranks else "", verdict)))


async def _namespaces(cluster: Any, _: str) -> list[Candidate]:
    """Those with tiers, where that may be known, else all."""
    from kvtier.cluster.protocol import TIER, Forbidden, Kind

    try:
        tiers = await cluster.list(TIER, "")
    except Forbidden:
        tiers = []
    if not tiers:
        everywhere = Kind("v1", "namespaces", "Namespace", namespaced=False)
        return [(each["metadata"]["name"], "") for each in await cluster.list(everywhere, "")]
    return [(name, "") for name in sorted({body["metadata"]["namespace"] for body in tiers})]


def _starting(found: Sequence[Candidate] | Iterator[Candidate], last: str) -> list[Candidate]:
    return [(word, said) for word, said in found if word.startswith(last)]
