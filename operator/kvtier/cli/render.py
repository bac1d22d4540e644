"""``kvtier render``: every child of a tier, without a cluster.

Tokens are made once, in the cluster, and never printed: in their place stand words that say so,
also inside the record and the ACL files (which then hold the hashes of those words). The owner's
uid is empty, since only a cluster gives one. With TLS, words stand for the CA that engines get.
"""

import argparse

from kvtier.cli import files, output
from kvtier.generation.record import new_record
from kvtier.render.render import RenderSettings, render

OPERATOR_PLACEHOLDER = "REDACTED-operator-token"
ENGINE_PLACEHOLDER = "REDACTED-engine-token"
PROBE_PLACEHOLDER = "REDACTED-probe-token"
CA_PLACEHOLDER = "ca.crt of Secret {name}\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    files.add_file_argument(parser)
    parser.add_argument("-o", "--output", choices=("yaml", "json"), default="yaml")
    parser.epilog = (
        "Tokens are shown as REDACTED-...-token: real ones are made in the cluster, once, and\n"
        "never printed. For reading and diffing; kvtier itself applies these objects."
    )


def run(arguments: argparse.Namespace) -> int:
    tier = files.load(arguments.file)
    record = new_record(
        tier.spec,
        operator_token=OPERATOR_PLACEHOLDER,
        engine_token=ENGINE_PLACEHOLDER,
        probe_token=PROBE_PLACEHOLDER,
    )
    tls = tier.spec.store.tls
    ca = CA_PLACEHOLDER.format(name=tls.secret_name) if tls else None
    objects = render(tier, record, settings=RenderSettings(), ca=ca)
    print(output.documents(objects, arguments.output), end="")
    return 0
