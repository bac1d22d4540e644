"""``kvtier status``: one tier as its operator sees it, on one screen.

Exits 0 for a tier that is Ready, 1 for one that is not, 2 when it cannot be asked.
"""

import argparse
import asyncio
from typing import Any, Final

from kvtier.cli import output, status_report
from kvtier.cli.errors import BadInput
from kvtier.cluster.connect import NoCluster, connect, default_namespace
from kvtier.cluster.protocol import TIER, ApiError, NotFound, Unavailable

NOT_READY: Final = 1
SECONDS: Final = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the tier")
    parser.add_argument("-n", "--namespace", help="its namespace (default: the context's)")
    parser.add_argument("--context", help="context of the kubeconfig (default: the current one)")
    parser.add_argument("--kubeconfig", help="file (default: $KUBECONFIG, then ~/.kube/config)")
    parser.add_argument("-o", "--output", choices=("table", "json", "yaml"), default="table")
    parser.epilog = "exit codes: 0 Ready, 1 not Ready, 2 it cannot be asked"


def run(arguments: argparse.Namespace) -> int:
    try:
        body = asyncio.run(_read(arguments))
    except NoCluster as error:
        raise BadInput(str(error)) from None
    if arguments.output == "table":
        text = status_report.text(body)
    else:
        text = output.document(status_report.document(body), arguments.output)
    print(text, end="")
    return 0 if status_report.is_ready(body) else NOT_READY


async def _read(arguments: argparse.Namespace) -> dict[str, Any]:
    where = {"context": arguments.context, "kubeconfig": arguments.kubeconfig}
    namespace = arguments.namespace or default_namespace(**where)
    async with connect(**where, timeout=SECONDS) as cluster:
        try:
            body = await cluster.get(TIER, namespace, arguments.name)
        except NotFound:
            body = None
        except Unavailable as error:
            raise BadInput(f"{error.message}; check the kubeconfig and its context") from None
        except ApiError as error:
            raise BadInput(f"KVCacheTier {namespace}/{arguments.name}: {error}") from None
    if body is None:
        raise BadInput(
            f"KVCacheTier {namespace}/{arguments.name}: not found; see kubectl get kvt -A"
        )
    return body
