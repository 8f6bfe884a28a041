"""The processes of a run, one for each device, by Lightning Fabric: who computes what, and sums.

A run on one device is a run of one process, which goes through the same code. The processes
(ranks) draw the same random numbers and hold the same method. They share out the batches of a pass
and the images of a training step, and then know the same again: features in order, sums in float64.
"""

import atexit
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from math import prod
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments import ClusterEnvironment
from lightning_fabric.strategies import DDPStrategy
from torch import Tensor

from dafuse.data.batches import free_bytes
from dafuse.errors import DafuseError
from dafuse.processes import end_with_starter, own_children, rank_here
from dafuse.wording import first_line

T = TypeVar("T")
BETWEEN_SIGNALS = 0.2  # seconds in which Ctrl-C waits, while processes connect


class Ranks:
    """This process among all of a run. Every method is called by all of them, in the same order."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.rank, self.count = fabric.global_rank, fabric.world_size

    @property
    def is_first(self) -> bool:
        """Tell whether this is the one that speaks and writes."""
        return self.rank == 0

    @property
    def starts_others(self) -> bool:
        """Tell whether the others are started from here, and are not there before."""
        if self.count == 1 or self.on_this_machine < self.count:
            return False
        return not self._environment.creates_processes_externally

    @property
    def on_this_machine(self) -> int:
        """The number of processes on each machine."""
        return self.count // int(getattr(self.fabric.strategy, "num_nodes", 1))

    @property
    def _environment(self) -> ClusterEnvironment:
        assert isinstance(self.fabric.strategy, DDPStrategy)
        assert self.fabric.strategy.cluster_environment is not None
        return self.fabric.strategy.cluster_environment

    @property
    def are_awaited(self) -> bool:
        """Tell whether others were started that wait for this process."""
        return self.count > 1 and not self.starts_others

    @property
    def still_awaited(self) -> bool:
        """Tell whether others wait and were not met yet."""
        return self.are_awaited and not dist.is_initialized()

    def memory_for_images(self, wanted: int | None) -> int | None:
        """Return how many bytes of decoded images a process may keep: as many in every process.

        If no number is wanted, the processes of a machine share half of its free memory.
        """
        if wanted is not None or self.count == 1:
            return wanted
        return self.least(free_bytes(self.fabric.device) // 2 // self.on_this_machine)

    def workers(self, wanted: int | None) -> int | None:
        """Return the threads with which a process reads, where all of a machine read at once."""
        if wanted is not None or self.count == 1:
            return wanted
        return max(1, (os.cpu_count() or 1) // self.on_this_machine)

    def begin(self, open_inputs: Callable[[], T]) -> T:
        """Open what a run needs in every process, and connect them.

        If this process starts the others, it finds what is wrong before it starts any.
        """
        if not self.starts_others:
            self._connect()
            with self.together():
                return open_inputs()
        opened = open_inputs()
        self._connect()
        with self.together():
            return opened

    def _connect(self) -> None:
        if self.count == 1:
            return
        if not self._environment.creates_processes_externally:
            own_children()
        end_with_starter()
        try:
            self._launch()
        except (RuntimeError, ValueError, OSError) as error:
            reason = first_line(error)
            raise DafuseError(
                f"the {self.count} processes did not come together at "
                f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}: {reason}"
            ) from None

    def _launch(self) -> None:
        """Launch in a thread: Python handles no signal while its main thread waits in torch."""
        connected: Future[int] = Future()

        def launch() -> None:
            try:
                self.fabric.launch()
                connected.set_result(torch.get_num_threads())
            except BaseException as error:  # the thread that waits raises it
                connected.set_exception(error)

        thread = threading.Thread(target=launch, daemon=True, name="connects")
        thread.start()
        while thread.is_alive():
            thread.join(BETWEEN_SIGNALS)
        threads = connected.result()
        atexit.register(_leave_others)
        # Fabric chose these in that thread, and torch keeps them for each thread apart
        self.fabric.accelerator.setup_device(self.fabric.device)
        torch.set_num_threads(threads)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Raise an error of one process in all of them, with the name of that process."""
        error: Exception | None = None
        try:
            yield
        except (DafuseError, OSError) as wrong:
            if self.count == 1:
                raise
            error = wrong
        if self.count == 1:
            return
        told = [("", "")] * self.count
        dist.all_gather_object(told, (rank_here(), "" if error is None else str(error)))
        if self.is_first and error is not None:
            raise error  # as it is: an OSError has its own words
        for who, what in told:
            if what:
                raise DafuseError(f"{who}: {what}" if who else what)

    def share(self, images: int, rank: int | None = None) -> slice:
        """Return a process's part of a training batch of so many images; it may be empty."""
        rank = self.rank if rank is None else rank
        each, more = divmod(images, self.count)
        start = rank * each + min(rank, more)
        return slice(start, start + each + (rank < more))

    def rows(self, images: int, size: int, rank: int | None = None) -> np.ndarray:
        """Return the images of a process where whole batches of this size are dealt out."""
        rank = self.rank if rank is None else rank
        every = np.arange(images)
        return every[every // size % self.count == rank]

    def in_order(self, parts: Sequence[Tensor], images: int, size: int) -> Tensor:
        """Join what was computed of the batches dealt out, in the order of the images."""
        if self.count == 1 or not images:
            return torch.cat(list(parts))
        like = parts[0] if parts else torch.zeros(0)
        # the first process has a batch; others may have none
        shape, dtype = self.broadcast((like.shape[1:], like.dtype))
        padded = torch.zeros(
            len(self.rows(images, size, 0)), *shape, dtype=dtype, device=self.fabric.device
        )
        if parts:
            own = torch.cat(list(parts))
            padded[: len(own)] = own
        joined = padded.new_empty(images, *shape)
        for rank, part in enumerate(self._gathered(padded)):
            rows = torch.from_numpy(self.rows(images, size, rank)).to(joined.device)
            joined[rows] = part[: len(rows)]
        return joined

    def summed(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Add up tensors over all processes in float64; one that lacks them adds nothing."""
        if self.count == 1:
            return dict(tensors)
        about = self.broadcast({name: (one.shape, one.dtype) for name, one in tensors.items()})
        found = {}
        for name, (shape, dtype) in about.items():
            total = torch.zeros(shape, dtype=torch.float64, device=self.fabric.device)
            if name in tensors:
                total += tensors[name].to(total.device)
            dist.all_reduce(total)
            found[name] = total.to(dtype)
        return found

    def whole_batch(self, part: Tensor, images: int) -> Tensor:
        """Return the rows of a training batch of all processes, in order.

        Only the rows of this process have a gradient. It is multiplied by images / len(part), since
        a step weighs this process's loss by len(part) / images.
        """
        fixed = part.detach()
        padded = fixed.new_zeros(-(-images // self.count), *part.shape[1:])
        padded[: len(part)] = fixed
        of_ranks = self._gathered(padded).unbind()
        shares = [self.share(images, rank) for rank in range(self.count)]
        rows = [one[: own.stop - own.start] for one, own in zip(of_ranks, shares, strict=True)]
        if len(part):
            rows[self.rank] = fixed + images / len(part) * (part - fixed)
        return torch.cat(rows)

    def _gathered(self, own: Tensor) -> Tensor:
        """Return such a tensor of every process [R, ...]."""
        found = own.new_empty(self.count, *own.shape)
        dist.all_gather(list(found.unbind()), own.contiguous())
        return found

    def broadcast(self, what: T) -> T:
        """Return what the first process has."""
        return what if self.count == 1 else self.fabric.broadcast(what)

    def broadcast_tensors(self, tensors: Mapping[str, Tensor] | None) -> dict[str, Tensor] | None:
        """Return the tensors of the first process, bit by bit, on each one's device."""
        if self.count == 1:
            return None if tensors is None else dict(tensors)
        about = {k: (t.shape, t.dtype) for k, t in tensors.items()} if tensors is not None else None
        about = self.broadcast(about)
        if about is None:
            return None
        found = {}
        for name, (shape, dtype) in about.items():
            size = prod(shape) * dtype.itemsize
            if self.is_first and tensors is not None:
                one = tensors[name].detach().to(self.fabric.device).contiguous()
                flat = one.reshape(-1).view(torch.uint8)
            else:
                flat = torch.empty(size, dtype=torch.uint8, device=self.fabric.device)
            if size:
                dist.broadcast(flat, 0)
            found[name] = flat.view(dtype).reshape(shape)
        return found

    def least(self, number: int) -> int:
        """Return the smallest of the processes' numbers."""
        if self.count == 1:
            return number
        found = torch.tensor(number, dtype=torch.int64, device=self.fabric.device)
        dist.all_reduce(found, dist.ReduceOp.MIN)
        return int(found)


@contextmanager
def saying_that_one_ended(ranks: Ranks, what_next: str) -> Iterator[None]:
    """Say in one line that another process of the run is gone, where the libraries show a trace."""
    try:
        yield
    except RuntimeError as error:
        if ranks.count == 1 or not _is_of_connection(error):
            raise
        raise DafuseError(
            f"another of the {ranks.count} processes of this run ended (killed, out of memory, or "
            f"with an error of its own): {what_next}"
        ) from error


def _is_of_connection(error: RuntimeError) -> bool:
    words = str(error).lower()
    return isinstance(error, dist.DistError) or any(
        word in words for word in ("connection closed", "connection reset", "broken pipe")
    )


def _leave_others() -> None:
    """Leave the other processes: torch sometimes aborts if Python ends while they are connected."""
    if dist.is_initialized():
        dist.destroy_process_group()
