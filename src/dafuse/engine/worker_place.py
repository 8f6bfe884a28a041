"""Work in other processes: what they have of their machine.

No torch is imported here: a new process first learns how many threads it may use.
"""

import os
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dafuse.errors import DafuseError

if TYPE_CHECKING:
    from dafuse.engine.config import RunConfig

OURS = "DAFUSE_"  # variables of the environment that a worker elsewhere needs, too


@dataclass(frozen=True)
class WorkerPlace:
    """Place where a step is made: as in the process that asks, with a part of the machine."""

    threads: int
    share: float  # of free memory that may hold decoded images
    folder: str = field(default_factory=os.getcwd)
    arguments: tuple[str, ...] = field(default_factory=lambda: tuple(sys.argv))
    environment: tuple[tuple[str, str], ...] = field(
        default_factory=lambda: tuple((k, v) for k, v in os.environ.items() if k.startswith(OURS))
    )

    def enter(self) -> None:
        if os.path.isdir(self.folder):  # elsewhere only what is named by whole paths is found
            os.chdir(self.folder)
        sys.argv[:] = self.arguments  # a run notes the command
        os.environ.update(self.environment)

    def fitted(self, config: "RunConfig") -> "RunConfig":
        """Return the configuration for opening data, with this place's part where none is set."""
        from dafuse.data.batches import free_bytes
        from dafuse.engine.devices import launch

        workers = self.threads if config.workers is None else config.workers
        memory = config.memory_gb
        if memory is None and self.share < 1:
            device = launch(config.device, config.precision, config.deterministic).device
            memory = self.share * free_bytes(device) / 2 / 2**30
        return replace(config, workers=workers, memory_gb=memory)


@dataclass(frozen=True)
class ClusterShare:
    """The part of a machine that each task of a cluster has."""

    gpu: float | None = None  # None: a whole GPU where there are some
    cpus: int = 1

    def resources(self, ray: Any) -> dict[str, float]:
        """Return the task's resources as Ray takes them; refuse what no node has."""
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        gpus = max(node.get("GPU", 0.0) for node in nodes)
        gpu = self.gpu if self.gpu is not None else float(gpus > 0)
        if gpu > gpus:
            raise DafuseError(f"--gpu-share {gpu:g}: no machine of the cluster has a GPU for it")
        if not any(node.get("CPU", 0.0) >= self.cpus for node in nodes):
            most = max(node.get("CPU", 0.0) for node in nodes)
            raise DafuseError(
                f"--cpus {self.cpus}: no machine of the cluster has more than {most:g}"
            )
        return {"num_cpus": self.cpus, "num_gpus": gpu}

    def tasks(self, ray: Any) -> int:
        """Return how many tasks the whole cluster makes at a time."""
        return sum(int(fit) for fit in self._fits(ray))

    def memory(self, ray: Any) -> float:
        """Return the part of a machine's memory that a task may take."""
        return 1 / max(1.0, *self._fits(ray))

    def _fits(self, ray: Any) -> list[float]:
        """Return, for each machine, how many tasks its processors and GPUs allow."""
        given, found = self.resources(ray), []
        for node in ray.nodes():
            has = node["Resources"] if node["Alive"] else {}
            fit = has.get("CPU", 0.0) / given["num_cpus"]
            if given["num_gpus"]:
                fit = min(fit, has.get("GPU", 0.0) / given["num_gpus"])
            found.append(fit)
        return found
