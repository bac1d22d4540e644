"""``kvtier layout``: what to write into a tier's ``model.layout``, from a model's config.json."""

import argparse

from kvtier.breakeven.footprint import of_layout
from kvtier.breakeven.sizes import ELEMENT_BYTES
from kvtier.cli import model_config, output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    model_config.add_argument(parser, required=True)
    parser.add_argument("-o", "--output", choices=("yaml", "json"), default="yaml")


def run(arguments: argparse.Namespace) -> int:
    config = model_config.load(arguments.model_config)
    content = {"layout": model_config.wire_form(config.layout)}
    if arguments.output == "json":
        text = output.document({"architecture": config.architecture, **content}, "json")
    else:
        lines = [f"# {config.architecture}; bytes of a hit on n tokens, each byte once:"]
        for dtype in ("bfloat16", "fp8_e4m3"):
            footprint = of_layout(config.layout, ELEMENT_BYTES[dtype])
            lines.append(f"# {dtype}: {model_config.hit(footprint)}")
        text = "\n".join([*lines, output.document(content, "yaml")])
    print(text, end="")
    return 0
