"""Work as CUDA graphs: one launch for a training step or a forward pass, instead of a thousand.

A small batch takes longer to launch than to compute. So the work on it (for a training step:
forward, backward, optimiser and what the method does after it) is captured once as a CUDA graph and
then launched on the next images.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dafuse.wording import first_line

AS_THEY_ARE = 2  # first calls of each batch size: their set-up must not be captured


class GraphedWork:
    """A function of CUDA tensors as a CUDA graph; one that waits for the device runs plainly."""

    def __init__(
        self, function: Callable[..., Tensor], what: str, say: Callable[[str], None] = print
    ) -> None:
        self._function, self._what, self._say = function, what, say
        self._capturable = True
        self._stream = torch.cuda.Stream()
        self._pool = torch.cuda.graph_pool_handle()
        self._done: Counter[int] = Counter()  # calls of each batch size
        self._graphs: dict[int, _Captured] = {}

    def __call__(self, *batch: Tensor) -> Tensor:
        size = len(batch[0])
        self._done[size] += 1
        if self._done[size] > AS_THEY_ARE and size not in self._graphs and self._capturable:
            self._try_to_capture(batch)
        if size not in self._graphs:
            return self._aside(batch)
        captured = self._graphs[size]
        for place, tensor in zip(captured.batch, batch, strict=True):
            place.copy_(tensor)
        captured.graph.replay()
        return captured.result.clone()  # the next launch overwrites the graph's memory

    def _aside(self, batch: tuple[Tensor, ...]) -> Tensor:
        """Run on the stream of the capture, where autograd accumulates gradients."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            result = self._function(*batch)
        torch.cuda.current_stream().wait_stream(self._stream)
        return result

    def _try_to_capture(self, batch: tuple[Tensor, ...]) -> None:
        """Capture the work, which computes nothing yet: a launch does."""
        batch = tuple(tensor.clone() for tensor in batch)
        graph = torch.cuda.CUDAGraph()
        generator = torch.cuda.default_generators[batch[0].device.index]
        before = generator.clone_state()
        try:
            with torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):  # other threads may go on predicting
                result = self._function(*batch)
        except RuntimeError as error:
            self._capturable = False
            generator.graphsafe_set_state(before)  # else it waits forever for the capture's end
            reason = first_line(error)
            self._say(f"{self._what} cannot be captured as a CUDA graph, so it is slower: {reason}")
            return
        self._graphs[len(batch[0])] = _Captured(graph, batch, result)


def graphed(
    work: Callable[..., Tensor],
    what: str,
    device: torch.device,
    say: Callable[[str], None] = print,
) -> Callable[..., Tensor]:
    """Return the same work as a CUDA graph, on a GPU; elsewhere return it unchanged."""
    return GraphedWork(work, what, say) if device.type == "cuda" else work


@dataclass
class _Captured:
    graph: torch.cuda.CUDAGraph
    batch: tuple[Tensor, ...]  # what the graph reads
    result: Tensor  # what it writes
