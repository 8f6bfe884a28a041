"""Places that tests read: this repository, what may lie beside it, an old model."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OLD_MODEL = ROOT / "tests" / "fixtures" / "model-v1"

# weights and data that are not ours to ship, where somebody has put them beside the repository
SHARED = ROOT.parent / "shared"
