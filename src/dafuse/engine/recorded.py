"""Training steps recorded as CUDA graphs: one launch for a step instead of a thousand.

A small batch takes longer to launch than to compute. So a whole step (forward, backward, optimiser
and whatever the method does after it) is recorded once and then replayed on the next images.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

AS_THEY_ARE = 2  # first steps of each batch size: what they set up must not be part of a recording
Step = Callable[[Tensor, Tensor], Tensor]  # images [B, 3, S, S], labels [B] -> loss, no gradient


class RecordedStep:
    """Does what the step does, on CUDA tensors. A step that waits for the device stays as it is."""

    def __init__(self, step: Step, say: Callable[[str], None] = print) -> None:
        self._step, self._say = step, say
        self._recordable = True
        self._stream = torch.cuda.Stream()
        self._pool = torch.cuda.graph_pool_handle()
        self._done: Counter[int] = Counter()  # steps of each batch size
        self._recordings: dict[int, _Recording] = {}

    def __call__(self, images_B3SS: Tensor, labels_B: Tensor) -> Tensor:
        size = len(labels_B)
        self._done[size] += 1
        if self._done[size] > AS_THEY_ARE and size not in self._recordings and self._recordable:
            self._try_to_record(images_B3SS, labels_B)
        if size not in self._recordings:
            return self._aside(images_B3SS, labels_B)
        recording = self._recordings[size]
        recording.images_B3SS.copy_(images_B3SS)
        recording.labels_B.copy_(labels_B)
        recording.graph.replay()
        return recording.loss.clone()  # its memory is written again by the next replay

    def _aside(self, images_B3SS: Tensor, labels_B: Tensor) -> Tensor:
        """On the stream of the recordings, where autograd remembers to add up gradients."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            loss = self._step(images_B3SS, labels_B)
        torch.cuda.current_stream().wait_stream(self._stream)
        return loss

    def _try_to_record(self, images_B3SS: Tensor, labels_B: Tensor) -> None:
        """Nothing is computed yet: a recording is replayed for that."""
        images_B3SS, labels_B = images_B3SS.clone(), labels_B.clone()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):  # other threads may go on predicting
                loss = self._step(images_B3SS, labels_B)
        except RuntimeError as error:
            self._recordable = False
            reason = str(error).splitlines()[0]
            self._say(f"this training step cannot be recorded, so it is slower: {reason}")
            return
        self._recordings[len(labels_B)] = _Recording(graph, images_B3SS, labels_B, loss)


@dataclass
class _Recording:
    graph: torch.cuda.CUDAGraph
    images_B3SS: Tensor  # what the graph reads
    labels_B: Tensor
    loss: Tensor  # what it writes
