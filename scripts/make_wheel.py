"""Build the wheel, and beside it its software bill of materials (CycloneDX, JSON).

    python scripts/make_wheel.py --out dist

The bill lists dafuse, the networks inside the wheel, and every package that `pip install` of the
wheel brings today, each with its exact version, licence and dependencies. The tools (build,
cyclonedx-bom) are installed into an environment that is deleted afterwards.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ("build", "cyclonedx-bom>=7")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("dist"), help="folder for both (dist)")
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory() as place:
        wheel, bill = make_wheel(out, Path(place))
    print(f"{wheel}\n{bill}")


def make_wheel(out: Path, place: Path) -> tuple[Path, Path]:
    """Write the wheel and its bill into a folder; environments are made in `place`."""
    tools, clean = place / "tools", place / "clean"
    venv.create(tools, with_pip=True)
    pip = [tools / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "--quiet"]
    install = ["install", "--no-compile"]  # both environments are deleted soon
    _call(*pip, *install, *TOOLS)
    _call(tools / "bin" / "python", "-m", "build", "--wheel", "--outdir", place / "built", ROOT)
    (built,) = (place / "built").glob("*.whl")
    venv.create(clean)  # without pip, which the wheel does not bring
    _call(*pip, "--python", clean, *install, built)
    listed = place / "bill.json"
    project = ROOT / "pyproject.toml"
    tool = tools / "bin" / "cyclonedx-py"
    _call(tool, "environment", "--pyproject", project, "--output-file", listed, clean)
    out.mkdir(parents=True, exist_ok=True)
    wheel, bill = out / built.name, out / f"{built.stem}.cdx.json"
    wheel.write_bytes(built.read_bytes())
    bill.write_text(json.dumps(_with_contents(json.loads(listed.read_text()), wheel), indent=1))
    return wheel, bill


def _with_contents(bill: dict[str, Any], wheel: Path) -> dict[str, Any]:
    """Add the wheel's own hash, and the networks that it holds."""
    bill["metadata"]["component"]["hashes"] = [_hash(wheel.read_bytes())]
    with ZipFile(wheel) as files:
        networks = [name for name in files.namelist() if name.endswith(".safetensors")]
        bill["components"] += [_network(name, files.read(name)) for name in sorted(networks)]
    return bill


def _network(name: str, content: bytes) -> dict[str, Any]:
    return {
        "type": "machine-learning-model",
        "bom-ref": name,
        "name": Path(name).stem,
        "hashes": [_hash(content)],
        "licenses": [{"license": {"id": "Apache-2.0"}}],
        "description": f"weights inside the wheel: {name}; docs/compact-model-card.md",
    }


def _hash(content: bytes) -> dict[str, str]:
    return {"alg": "SHA-256", "content": hashlib.sha256(content).hexdigest()}


def _call(*command: str | Path) -> None:
    """Run a tool; what it says is shown only where it fails."""
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        sys.exit(f"{command[0]} failed:\n{ended.stdout}{ended.stderr}")


if __name__ == "__main__":
    main()
