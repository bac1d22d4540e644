"""``kvtier render``: every child of a tier, without a cluster.

Tokens are made once, in the cluster, and never printed: in their place stand words that say so,
also inside the record and the ACL files (which then hold the hashes of those words). The owner's
uid is empty, since only a cluster gives one. With TLS, words stand for the CA that engines get.
"""

import argparse

from kvtier.api import validate
from kvtier.api.types import KVCacheTier
from kvtier.cli import files, model_config, output
from kvtier.cli.errors import BadInput
from kvtier.generation.record import new_record
from kvtier.render.render import RenderSettings, render

OPERATOR_PLACEHOLDER = "REDACTED-operator-token"
ENGINE_PLACEHOLDER = "REDACTED-engine-token"
PROBE_PLACEHOLDER = "REDACTED-probe-token"
LIMITER_PLACEHOLDER = "REDACTED-limiter-token"
CA_PLACEHOLDER = "ca.crt of Secret {name}\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    files.add_file_argument(parser)
    model_config.add_argument(parser, required=False)
    parser.add_argument("-n", "--namespace", help="of the tier (default: the file's, else default)")
    parser.add_argument("-o", "--output", choices=("yaml", "json"), default="yaml")
    parser.epilog = (
        "Tokens are shown as REDACTED-...-token: real ones are made in the cluster, once, and\n"
        "never printed. For reading and diffing; kvtier itself applies these objects."
    )


def run(arguments: argparse.Namespace) -> int:
    tier = _placed(model_config.load_tier(arguments), arguments.namespace)
    record = new_record(
        tier.spec,
        operator_token=OPERATOR_PLACEHOLDER,
        engine_token=ENGINE_PLACEHOLDER,
        probe_token=PROBE_PLACEHOLDER,
        limiter_token=LIMITER_PLACEHOLDER,
    )
    tls = tier.spec.store.tls
    ca = CA_PLACEHOLDER.format(name=tls.secret_name) if tls else None
    objects = render(tier, record, settings=RenderSettings(), ca=ca)
    print(output.documents(objects, arguments.output), end="")
    return 0


def _placed(tier: KVCacheTier, namespace: str | None) -> KVCacheTier:
    """The tier as ``kubectl apply -n`` would make it. Raises BadInput for what is no namespace."""
    if namespace is None:
        return tier
    metadata = tier.metadata.model_copy(update={"namespace": namespace})
    placed = tier.model_copy(update={"metadata": metadata})
    if validate.problems(placed):
        raise BadInput(f"--namespace: {namespace[:60]!r} is no DNS label; name a namespace")
    return placed
