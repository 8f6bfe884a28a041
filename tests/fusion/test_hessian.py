"""Second derivatives by going backward twice, against Hessians by differences of gradients."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from dafuse.backbones.adapter import Adapter
from dafuse.fusion.hessian import Tensors, diagonal_at, hutchinson, product
from dafuse.heads.cosine import cosine_logits
from helpers.small_networks import small_vit

EPSILON = 1e-6
BATCHES = 5, 2  # sizes that differ, so that a mean of means would show


@pytest.fixture(scope="module", autouse=True)
def _in_double_precision() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


class World:
    """A loss of images and labels in some parameters, and its whole Hessian [K, K]."""

    def __init__(self, module: torch.nn.Module, batches: list[tuple[Tensor, Tensor]]) -> None:
        self.module, self.batches = module, batches
        self.parameters = dict(module.named_parameters())

    def losses(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.module(images), labels, reduction="none")

    def whole(self) -> Tensor:
        """Return the Hessian by differences of gradients at θ ± ε in each entry."""
        images, labels = (torch.cat(parts) for parts in zip(*self.batches, strict=True))
        start, rows = self.flat(self.parameters), []
        for unit in torch.eye(len(start)) * EPSILON:
            ends = [self._gradient(start + way * unit, images, labels) for way in (1, -1)]
            rows.append((ends[0] - ends[1]) / (2 * EPSILON))
        return torch.stack(rows)

    def _gradient(self, flat: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        values = {key: part.requires_grad_() for key, part in self.unflat(flat).items()}
        loss = F.cross_entropy(functional_call(self.module, values, images), labels)
        parts = torch.autograd.grad(loss, list(values.values()))
        return torch.cat([part.flatten() for part in parts])

    def flat(self, tensors: Tensors) -> Tensor:
        return torch.cat([tensors[key].detach().flatten() for key in self.parameters])

    def unflat(self, values: Tensor) -> dict[str, Tensor]:
        parts = values.split([p.numel() for p in self.parameters.values()])
        pairs = zip(self.parameters.items(), parts, strict=True)
        return {key: part.view_as(p) for (key, p), part in pairs}


class Network(torch.nn.Module):
    """A ViT with attention, of which only the adapter is differentiated."""

    def __init__(self) -> None:
        super().__init__()
        vit = small_vit()
        self.__dict__["network"] = vit  # not one of its parameters
        self.adapter = Adapter(vit.depth, vit.width, rank=1, scale=1.0)
        with torch.no_grad():
            for parameter in self.adapter.parameters():
                parameter.add_(torch.randn(parameter.shape) * 0.3)
        self.adapter.eval()
        self.head = torch.randn(3, vit.width)

    def forward(self, images: Tensor) -> Tensor:
        return cosine_logits(self.network(images, self.adapter), self.head, 4.0)


@pytest.fixture(scope="module", params=["perceptron", "network"])
def world(request: pytest.FixtureRequest) -> World:
    torch.manual_seed(3)
    if request.param == "network":
        shape: tuple[int, ...] = (3, 32, 32)
        module: torch.nn.Module = Network()
    else:
        layers = torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)
        shape, module = (4,), torch.nn.Sequential(*layers)
    return World(module, [(torch.randn(n, *shape), torch.randint(0, 3, (n,))) for n in BATCHES])


@pytest.fixture(scope="module")
def whole(world: World) -> Tensor:
    return world.whole()


def close(found: Tensor, right: Tensor) -> bool:
    return torch.allclose(found, right, rtol=1e-5, atol=1e-6 * float(right.abs().max()))


def test_product_with_a_vector(world: World, whole: Tensor) -> None:
    vector = torch.randn(len(whole))
    found = product(world.losses, world.parameters, world.batches, world.unflat(vector))
    assert close(world.flat(found), whole @ vector)


def test_chosen_entries_of_the_diagonal_are_exact(world: World, whole: Tensor) -> None:
    diagonal = world.unflat(whole.diagonal())
    chosen = {key: torch.randperm(p.numel())[:3] for key, p in world.parameters.items()}
    found = diagonal_at(world.losses, world.parameters, world.batches, chosen)
    for key, places in chosen.items():
        assert close(found[key], diagonal[key].flatten()[places]), key
        assert float(found[key].abs().max()) > 0


def test_random_signs_find_the_diagonal_within_their_noise(world: World, whole: Tensor) -> None:
    """Each entry is within five standard errors; twice the diagonal would be far outside."""
    probes = 60
    generator = torch.Generator().manual_seed(1)
    args = world.losses, world.parameters, world.batches
    found = world.flat(hutchinson(*args, probes, generator))
    variance = torch.zeros(len(whole))
    for batch in world.batches:  # each draws its own signs, for one tensor at a time
        part = World(world.module, [batch]).whole() * len(batch[1]) / sum(BATCHES)
        sizes = [p.numel() for p in world.parameters.values()]
        same = torch.block_diag(*[torch.ones(size, size) for size in sizes])
        variance += ((part * (same - torch.eye(len(part)))) ** 2).sum(1) / probes
    error = 5 * variance.sqrt() + 1e-6
    assert ((found - whole.diagonal()).abs() < error).all()
    assert ((found - 2 * whole.diagonal()).abs() > error).any()


def test_without_off_diagonal_entries_one_probe_is_exact() -> None:
    """The Hessian of ½ Σ c θ² is the diagonal c, whatever the signs."""
    curvature = torch.tensor([3.0, -1.0, 0.5])
    theta = {"t": torch.randn(3, requires_grad=True)}

    def losses(images: Tensor, labels: Tensor) -> Tensor:
        return (0.5 * curvature * theta["t"].square()).sum() * images

    batches = [(torch.tensor([1.0, 3.0]), torch.zeros(2)), (torch.tensor([2.0]), torch.zeros(1))]
    found = hutchinson(losses, theta, batches, 1, torch.Generator().manual_seed(0))
    assert torch.allclose(found["t"], 2 * curvature)  # the mean of 1, 3 and 2


def test_a_parameter_in_which_the_loss_is_a_line_has_no_curvature() -> None:
    theta = {key: torch.tensor([2.0], requires_grad=True) for key in ("line", "factor")}

    def losses(images: Tensor, labels: Tensor) -> Tensor:
        return images * theta["line"] * theta["factor"].square()

    batches = [(torch.ones(2), torch.zeros(2))]
    chosen = {key: torch.tensor([0]) for key in theta}
    found = diagonal_at(losses, theta, batches, chosen)
    assert (float(found["line"]), float(found["factor"])) == (0, 4)
    ones = {key: torch.ones(1) for key in theta}
    moved = product(losses, theta, batches, ones)
    assert (float(moved["line"]), float(moved["factor"])) == (4, 4 + 4)


def test_signs_are_those_of_the_generator(world: World) -> None:
    def found(seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        args = world.losses, world.parameters, world.batches
        return world.flat(hutchinson(*args, 2, generator))

    assert torch.equal(found(1), found(1))
    assert not torch.equal(found(1), found(2))
