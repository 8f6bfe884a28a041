"""Processes that a launcher starts beside the first one of a run. No torch here.

Lightning Fabric starts one for each further device, by the command that a person gave, and torchrun
starts all of them. Only the first one speaks. The others end when the process that started them has
ended, even by SIGKILL: none is left behind, waiting for it.
"""

import os
import socket
import threading
import time

from dafuse.errors import DafuseError

STARTER = "DAFUSE_STARTED_BY"  # the number of the process whose children end with it
LOOKS = 0.5  # seconds between two looks at it
FIRST_SPEAKS = 3.0  # seconds in which the first process ends, if its error is the same


def rank_here() -> str:
    """Name this process where another one speaks for the run; "" for the one that does."""
    if "RANK" in os.environ:  # torchrun counts over all machines
        rank = os.environ["RANK"]
        return "" if rank == "0" else f"rank {rank} on {socket.gethostname()}"
    local, node = os.environ.get("LOCAL_RANK", "0"), os.environ.get("NODE_RANK", "0")
    if local == node == "0":
        return ""
    of_node = "" if node == "0" else f" of node {node}"
    return f"rank {local}{of_node} on {socket.gethostname()}"


def by_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


def started_on(devices: int, nodes: int) -> tuple[int, int]:
    """Return the devices of a machine, and the machines, as torchrun started them if it did."""
    if by_torchrun():
        here = int(os.environ["LOCAL_WORLD_SIZE"])
        started = here, int(os.environ["WORLD_SIZE"]) // here
        if (devices, nodes) not in (started, (1, 1)):
            raise DafuseError(
                f"torchrun started {here} processes on each of {started[1]} machines, which is not "
                f"--devices {devices} --nodes {nodes}: leave both options out"
            )
        return started
    wanted = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK")
    if nodes > 1 and (missing := [name for name in wanted if not os.environ.get(name)]):
        raise DafuseError(
            f"--nodes {nodes} needs {', '.join(missing)} in the environment: start the same "
            "command on each machine, with MASTER_ADDR and MASTER_PORT (the name of the first "
            "machine and a free port there) and its own NODE_RANK (0, 1, ...); or start it by "
            f"torchrun --nnodes {nodes} --nproc-per-node {devices} ... -m dafuse run"
        )
    _require_number("NODE_RANK", range(nodes), f"of this machine among the {nodes} of --nodes")
    if devices * nodes > 1:
        _require_number("MASTER_PORT", range(1, 2**16), "of a free port on the first machine")
        _require_known_address()
    return devices, nodes


def _require_number(name: str, fit: range, what: str) -> None:
    """Refuse a variable of the environment that is set to something else than such a number."""
    text = os.environ.get(name)
    if text is not None and not (text.isascii() and text.isdigit() and int(text) in fit):
        number = f"from {fit[0]} to {fit[-1]}" if len(fit) > 1 else f"{fit[0]}, or not set"
        raise DafuseError(
            f"{name} is {text!r} in the environment, and must be the number {what}: {number}"
        )


def _require_known_address() -> None:
    address = os.environ.get("MASTER_ADDR")
    if address is None:
        return
    try:
        socket.getaddrinfo(address, None)
    except (OSError, UnicodeError):  # of a name that no machine can have
        raise DafuseError(
            f"MASTER_ADDR is {address!r} in the environment, which this machine finds no address "
            "of: give the name or the IP address of the first machine"
        ) from None


def own_children() -> None:
    """Have processes started from here end with this one, without a trace of torch's own."""
    os.environ[STARTER] = str(os.getpid())
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def end_with_starter() -> None:
    """End this process as soon as the one that started it is gone; nothing for one by hand."""
    starter = str(os.getppid()) if by_torchrun() else os.environ.get(STARTER)
    if starter in (None, str(os.getpid())):
        return

    def look() -> None:
        while str(os.getppid()) == starter:
            time.sleep(LOOKS)
        os._exit(1)  # whatever the others wait for will not come

    threading.Thread(target=look, daemon=True, name="ends-with-starter").start()


def wait_for_first() -> None:
    """Give the first process time to say the same; if it ends meanwhile, so does this one."""
    time.sleep(FIRST_SPEAKS)
