"""Second derivatives of a loss, by going backward twice: what the Fisher diagonal stands for.

H is the Hessian of the mean loss over all samples of the batches, in the parameters given. The
graph of a batch's gradient is made once and then asked for as many products as are wanted.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from dafuse.progress import Bar

Tensors = Mapping[str, Tensor]
Losses = Callable[[Tensor, Tensor], Tensor]  # images, labels -> losses [B], of the parameters
Batches = Iterable[tuple[Tensor, Tensor]]


def product(losses: Losses, parameters: Tensors, batches: Batches, vector: Tensors) -> Tensors:
    """H v."""
    summed = {key: torch.zeros_like(p) for key, p in parameters.items()}
    samples = 0
    for count, gradient in _gradients(losses, parameters, batches):
        for key, part in _derivative(gradient, parameters, vector).items():
            summed[key] += part
        samples += count
    return {key: total / samples for key, total in summed.items()}


def hutchinson(
    losses: Losses,
    parameters: Tensors,
    batches: Batches,
    probes: int,
    generator: torch.Generator,
    bar: Bar | None = None,
) -> Tensors:
    """The diagonal of H as the mean of v * H v over random signs v: unbiased, with noise.

    The variance of an entry is the sum of squares of its row's other entries over ``probes``. So
    signs are drawn for one tensor at a time, as the others would only add to the noise, and anew
    for every batch, so that the noise is averaged over batches too.
    """
    summed = {key: torch.zeros_like(p) for key, p in parameters.items()}
    samples = 0
    for count, gradient in _gradients(losses, parameters, batches):
        for key, parameter in parameters.items():
            for _ in range(probes):
                signs = _signs(parameter, generator)
                part = _derivative(gradient, {key: parameter}, {key: signs})[key]
                summed[key] += signs * part
                if bar is not None:
                    bar.advance()
        samples += count
    return {key: total / (samples * probes) for key, total in summed.items()}


def diagonal_at(
    losses: Losses,
    parameters: Tensors,
    batches: Batches,
    chosen: Tensors,
    bar: Bar | None = None,
) -> Tensors:
    """The exact diagonal of H at the chosen entries, given by their places in the flat tensors."""
    summed = {key: parameters[key].new_zeros(len(places)) for key, places in chosen.items()}
    samples = 0
    for count, gradient in _gradients(losses, parameters, batches):
        for key, places in chosen.items():
            slopes = gradient[key].flatten()
            for n, place in enumerate(places.tolist()):  # H times a unit vector is a row of H
                (row,) = torch.autograd.grad(
                    slopes[place], [parameters[key]], retain_graph=True, materialize_grads=True
                )
                summed[key][n] += row.flatten()[place]
                if bar is not None:
                    bar.advance()
        samples += count
    return {key: total / samples for key, total in summed.items()}


def _gradients(
    losses: Losses, parameters: Tensors, batches: Batches
) -> Iterator[tuple[int, dict[str, Tensor]]]:
    """Of each batch its size and the gradient of its summed loss, as a graph."""
    for images, labels in batches:
        with sdpa_kernel(SDPBackend.MATH):  # fused attention has no second derivative
            total = losses(images, labels).sum()
            parts = torch.autograd.grad(total, list(parameters.values()), create_graph=True)
        yield len(labels), dict(zip(parameters, parts, strict=True))


def _derivative(gradient: Tensors, parameters: Tensors, vector: Tensors) -> dict[str, Tensor]:
    """The block of H of these parameters, for one batch, times a vector over all of them."""
    parts = torch.autograd.grad(
        [gradient[key] for key in parameters],
        list(parameters.values()),
        [vector[key] for key in parameters],
        retain_graph=True,
        materialize_grads=True,
    )
    return dict(zip(parameters, parts, strict=True))


def _signs(like: Tensor, generator: torch.Generator) -> Tensor:
    """Drawn on the CPU, so that every device has the same."""
    signs = torch.randint(0, 2, like.shape, generator=generator) * 2 - 1
    return signs.to(like.device, like.dtype)
