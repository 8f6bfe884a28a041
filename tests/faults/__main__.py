"""`python -m faults [PART...]`: the command line of the storm."""

import argparse
import sys
from importlib import import_module
from pathlib import Path

from faults.storm import storm
from faults.trial import MakePart

PARTS = {  # name -> the class that makes its trials, in the module of that name
    "kills": "Kills",
    "disks": "Disks",
    "damage": "Damage",
    "pictures": "Pictures",
    "server": "Server",
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="faults", description="Try to break dafuse.")
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="which (default: all)")
    parser.add_argument("--minutes", type=float, default=5, help="for all parts together (5)")
    parser.add_argument("--seed", type=int, default=1, help="of the first trial of each part (1)")
    parser.add_argument("--trials", type=int, help="of each part at most")
    parser.add_argument("--log", type=Path, default=Path("faults.jsonl"), help="of every trial")
    options = parser.parse_args()
    chosen = {name: make_part(name) for name in options.parts or PARTS}
    if not storm(chosen, options.seed, options.minutes, options.trials, options.log):
        sys.exit(1)


def make_part(name: str) -> MakePart:
    return getattr(import_module(f"faults.{name}"), PARTS[name])


if __name__ == "__main__":
    main()
