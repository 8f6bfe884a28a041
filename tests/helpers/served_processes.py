"""`dafuse serve` as a process of its own, for tests: started, asked, stopped."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from helpers.processes import HEAVY, clean_environment, dafuse_without
from helpers.served_apps import wait_for

# all that dafuse[serve] does not bring
BEYOND_SERVE = sorted(set(HEAVY) - {"onnx", "rich"})


@contextmanager
def process(
    *arguments: str | Path, bare: bool = False, files_allowed: int = 0, **environment: str
) -> Iterator[subprocess.Popen[str]]:
    """``bare``: where torch, among others, cannot be imported; a limit of open files, if any."""
    dafuse = dafuse_without(*BEYOND_SERVE) if bare else [sys.executable, "-m", "dafuse"]
    limited = ["sh", "-c", f'ulimit -n {files_allowed}; exec "$@"', "sh"] if files_allowed else []
    run = subprocess.Popen(
        [*limited, *dafuse, "serve", "--port", "0", "--device", "cpu", *map(str, arguments)],
        env=clean_environment(**environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield run
    finally:
        run.kill()
        run.communicate()


def address(run: subprocess.Popen[str]) -> str:
    assert run.stdout is not None
    line = run.stdout.readline()
    found = re.search(r"at (http://\S+);", line)
    assert found, line
    wait_for(lambda: _answers(found[1]))
    return found[1]


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz").status_code == 200
    except httpx.TransportError:
        return False


def stopped(run: subprocess.Popen[str], by: signal.Signals = signal.SIGINT) -> str:
    """Stop it and return what it said last; it must end within the time it is given."""
    run.send_signal(by)
    out, err = run.communicate(timeout=20)
    assert err == ""
    assert run.returncode == 0
    return out
