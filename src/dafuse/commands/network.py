"""Options of the commands that load a model's network."""

import argparse


def add_network_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--weights", help="a local .safetensors file with the backbone's weights")
    parser.add_argument(
        "--device",
        default="auto",
        choices=("auto", "cpu", "cuda", "mps"),
        help="where it runs; auto takes a GPU if there is one",
    )
