"""Helpers of the light core's tests. Nothing here may import torch: it is not installed."""

import os
import subprocess
import sys
from pathlib import Path

NAMES = ["house", "oak", "fish"]
LATER = ["bus", "flower"]


def dafuse(
    *arguments: object, cwd: Path | None = None, code: int = 0
) -> subprocess.CompletedProcess[str]:
    """The real command, which must end with this code."""
    environment = {name: value for name, value in os.environ.items() if name[:7] != "DAFUSE_"}
    command = [str(Path(sys.executable).with_name("dafuse")), *map(str, arguments)]
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**environment, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done
