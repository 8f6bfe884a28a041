"""dafuse in a process of its own: a clean environment, without some packages, killed at a call."""

import os
import sys

# what dafuse depends on beside numpy and Pillow; extras, too, but for onnxruntime and the server's
HEAVY = ["torch", "torchvision", "timm", "lightning_fabric", "jsonargparse", "rich", "yaml"]
HEAVY += ["matplotlib", "onnx", "onnxscript", "sklearn", "scipy"]
# a process that kills itself, for good, at the count-th call of a function
KILLED_AT_A_CALL = """
import importlib, os, signal, sys
module, path, count = sys.argv[1], sys.argv[2].split("."), int(sys.argv[3])
owner = importlib.import_module(module)
for name in path[:-1]:
    owner = getattr(owner, name)
original, calls = getattr(owner, path[-1]), 0
def counted(*args, **kwargs):
    global calls
    calls += 1
    if calls == count:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*args, **kwargs)
setattr(owner, path[-1], counted)
from dafuse.cli import main
main(sys.argv[4:])
"""


def clean_environment(**extra: str) -> dict[str, str]:
    """For subprocesses: few threads, nothing of the caller's weights and data."""
    keep = {k: v for k, v in os.environ.items() if not k.startswith("DAFUSE_")}
    return keep | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "COLUMNS": "200"} | extra


def dafuse_without(*modules: str) -> list[str]:
    """The command dafuse where these cannot be imported."""
    code = f"""
import sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {modules}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Nothing())
from dafuse.cli import main
main(sys.argv[1:])
"""
    return [sys.executable, "-c", code]
