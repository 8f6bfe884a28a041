"""`dafuse backbone export TAG FILE`: a network as one file that the light core computes with."""

from pathlib import Path

from dafuse.commands.parsing import Parser


def main(arguments: list[str]) -> None:
    parser = Parser(prog="dafuse backbone", description="Networks that look at images.")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)
    export = commands.add_parser(
        "export",
        description="Write a network as one .onnx file: features at all depths, how images must be "
        "cut, tag and hash are inside. `dafuse learn MODEL SOURCE --backbone FILE` then needs no "
        "torch. The export itself needs dafuse[torch].",
        help="write a network as one .onnx file",
    )
    export.add_argument(
        "tag", help="embedded, small, base, large, or an exact tag of timm (dafuse list backbones)"
    )
    export.add_argument("file", help="its name ends in .onnx")
    export.add_argument("--weights", help="a local .safetensors file with its weights")
    export.add_argument(
        "--weights-sha256", "--weights_sha256", help="what that file's SHA-256 must be"
    )
    options = parser.parse_args(arguments)

    from dafuse.backbones.graph import export_backbone, require_exportable
    from dafuse.backbones.load import build_backbone, with_weights
    from dafuse.engine.display import TerminalProgress

    file = Path(options.file).expanduser()
    with TerminalProgress() as progress:
        network = build_backbone(options.tag)
        require_exportable(network, file)
        with_weights(network, options.weights, options.weights_sha256, progress)
        with progress.bar("exporting", 0):
            difference = export_backbone(network, file)
    looks = network.preprocessing
    print(
        f"{file}: {network.tag}, {file.stat().st_size / 1e6:.1f} MB, images of {looks.size} x "
        f"{looks.size} pixels, {network.width_at('moments')} features for lift"
    )
    print(f"compared with torch on made-up pictures: features differ by up to {difference:.1g}")
    print(f"teach with it, without torch: dafuse learn MODEL SOURCE --backbone {file}")
