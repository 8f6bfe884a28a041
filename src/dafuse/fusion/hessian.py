"""Second derivatives of a loss by double backward, to compare the Fisher diagonal with.

H is the Hessian of the mean loss over all samples, with respect to the given parameters. The graph
of a batch's gradient is built once and serves all products with that batch.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from dafuse.progress import Bar

Tensors = Mapping[str, Tensor]
Losses = Callable[[Tensor, Tensor], Tensor]  # images, labels -> losses [B] of the parameters
Batches = Iterable[tuple[Tensor, Tensor]]


def product(losses: Losses, parameters: Tensors, batches: Batches, vector: Tensors) -> Tensors:
    """Return H v."""
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
    """Estimate the diagonal of H as the mean of v * H v over random signs v: unbiased, but noisy.

    The variance of an entry is the sum of squares of the other entries in its row of H, divided by
    ``probes``. So signs are drawn for one tensor at a time, because other tensors would only add
    noise, and drawn again for every batch, which averages the noise over batches too.
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
    """Return the exact diagonal of H at chosen entries, given as indices into the flat tensors."""
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
    """Yield each batch's size and the gradient of its summed loss, as a graph."""
    for images, labels in batches:
        with sdpa_kernel(SDPBackend.MATH):  # fused attention has no second derivative
            total = losses(images, labels).sum()
            parts = torch.autograd.grad(total, list(parameters.values()), create_graph=True)
        yield len(labels), dict(zip(parameters, parts, strict=True))


def _derivative(gradient: Tensors, parameters: Tensors, vector: Tensors) -> dict[str, Tensor]:
    """Multiply one batch's block of H for these parameters by a vector over all of them."""
    parts = torch.autograd.grad(
        [gradient[key] for key in parameters],
        list(parameters.values()),
        [vector[key] for key in parameters],
        retain_graph=True,
        materialize_grads=True,
    )
    return dict(zip(parameters, parts, strict=True))


def _signs(like: Tensor, generator: torch.Generator) -> Tensor:
    """Draw signs on the CPU, so that they are the same for every device."""
    signs = torch.randint(0, 2, like.shape, generator=generator) * 2 - 1
    return signs.to(like.device, like.dtype)
