"""Work recorded as CUDA graphs: one launch for a training step or a forward pass, not a thousand.

A small batch takes longer to launch than to compute. So what is done with it (of a training step:
forward, backward, optimiser and whatever the method does after it) is recorded once and then
replayed on the next images.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

AS_THEY_ARE = 2  # first calls of each batch size: what they set up must not be part of a recording


class Recorded:
    """Does what the function of CUDA tensors does. One that waits for the device stays as it is.

    A recording reads and writes the memory that the function did when it was recorded. So whatever
    the function uses beside its arguments must stay where it is; its values may change.
    """

    def __init__(
        self, function: Callable[..., Tensor], what: str, say: Callable[[str], None] = print
    ) -> None:
        self._function, self._what, self._say = function, what, say
        self._recordable = True
        self._stream = torch.cuda.Stream()
        self._pool = torch.cuda.graph_pool_handle()
        self._done: Counter[int] = Counter()  # calls of each batch size
        self._recordings: dict[int, _Recording] = {}

    def __call__(self, *batch: Tensor) -> Tensor:
        size = len(batch[0])
        self._done[size] += 1
        if self._done[size] > AS_THEY_ARE and size not in self._recordings and self._recordable:
            self._try_to_record(batch)
        if size not in self._recordings:
            return self._aside(batch)
        recording = self._recordings[size]
        for place, tensor in zip(recording.batch, batch, strict=True):
            place.copy_(tensor)
        recording.graph.replay()
        return recording.result.clone()  # its memory is written again by the next replay

    def _aside(self, batch: tuple[Tensor, ...]) -> Tensor:
        """On the stream of the recordings, where autograd remembers to add up gradients."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            result = self._function(*batch)
        torch.cuda.current_stream().wait_stream(self._stream)
        return result

    def _try_to_record(self, batch: tuple[Tensor, ...]) -> None:
        """Nothing is computed yet: a recording is replayed for that."""
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
            self._recordable = False
            generator.graphsafe_set_state(before)  # it would wait for the recording's end for ever
            reason = str(error).splitlines()[0]
            self._say(f"{self._what} cannot be recorded, so it is slower: {reason}")
            return
        self._recordings[len(batch[0])] = _Recording(graph, batch, result)


def graphed(
    work: Callable[..., Tensor],
    what: str,
    device: torch.device,
    say: Callable[[str], None] = print,
) -> Callable[..., Tensor]:
    """The same work, recorded where there is something to gain: on a GPU."""
    return Recorded(work, what, say) if device.type == "cuda" else work


@dataclass
class _Recording:
    graph: torch.cuda.CUDAGraph
    batch: tuple[Tensor, ...]  # what the graph reads
    result: Tensor  # what it writes
