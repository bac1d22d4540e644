"""``kvtier generation``: how Git learns the name of the Secret that engines mount."""

import argparse

from kvtier.cli import files, model_config, output
from kvtier.generation.identity import generation_id, identity
from kvtier.render.names import engine_secret_name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    files.add_file_argument(parser)
    model_config.add_argument(parser, required=False)
    parser.add_argument(
        "-o",
        "--output",
        choices=("id", "secretName", "json"),
        default="id",
        help="the generation's id (default), its engine Secret's name, or both and the identity",
    )


def run(arguments: argparse.Namespace) -> int:
    tier = model_config.load_tier(arguments)
    generation = generation_id(tier.spec)
    secret = engine_secret_name(tier.metadata.name, generation)
    forms = {"id": f"{generation}\n", "secretName": f"{secret}\n"}
    if arguments.output in forms:
        text = forms[arguments.output]
    else:
        fields = {"id": generation, "secretName": secret, "identity": identity(tier.spec)}
        text = output.document(fields, "json")
    print(text, end="")
    return 0
