"""Class memory: each class as a Gaussian over features, from which its features can be drawn again.

What is kept for a class is its mean and a factor of its covariance, from which samples are one
matrix product away. Kinds, and their cost in numbers per class at width D:

    full      a packed lower-triangular Cholesky factor     D + D (D + 1) / 2
    diagonal  the deviations                                D + D
    low_rank  the leading directions plus the rest's        D + D k + D
              deviation in each coordinate
"""

import torch
from torch import Tensor

KINDS = ("full", "diagonal", "low_rank")
JITTER = 1e-4  # added to every variance: the covariance of few images is singular


class ClassMemory:
    def __init__(
        self,
        width: int,
        kind: str = "full",
        rank: int = 16,
        dtype: torch.dtype = torch.float32,
        jitter: float = JITTER,
    ) -> None:
        if kind not in KINDS:
            raise ValueError(f"memory must be one of {KINDS}, not {kind!r}")
        self.width, self.kind, self.rank, self.dtype = width, kind, rank, dtype
        self.jitter = jitter
        self.tensors: dict[str, Tensor] = {"mean": torch.zeros(0, width, dtype=dtype)}
        for name, shape in self._shapes().items():
            self.tensors[name] = torch.zeros(0, *shape, dtype=dtype)

    def __len__(self) -> int:
        return len(self.tensors["mean"])

    def add(self, feats_ND: Tensor, labels_N: Tensor, first: int, classes: int) -> None:
        """Learn the classes first .. first + classes - 1 from their features.

        A class of one image has no covariance of its own and borrows the mean one of the classes
        learned with it, or else of all classes known so far.
        """
        exact = torch.float32 if feats_ND.device.type == "mps" else torch.float64
        grouped = [feats_ND[labels_N == first + c].to(exact) for c in range(classes)]
        means = torch.stack([f.mean(0) for f in grouped])
        own = {c: torch.cov(f.T) for c, f in enumerate(grouped) if len(f) > 1}
        borrowed = self._borrow(list(own.values())).to(means)
        factors = [self._factor(own.get(c, borrowed)) for c in range(classes)]
        new = {"mean": means} | {k: torch.stack([f[k] for f in factors]) for k in factors[0]}
        for name, tensor in new.items():
            old = self.tensors[name].to(tensor.device)
            self.tensors[name] = torch.cat([old, tensor.to(self.dtype)])

    def sampler(self, device: torch.device) -> "Sampler":
        """Ready to draw: factors unpacked once, on the device, in float32."""
        on_device = {k: v.to(device).float() for k, v in self.tensors.items()}
        if self.kind == "full":
            lower = torch.zeros(len(self), self.width, self.width, device=device)
            rows, cols = torch.tril_indices(self.width, self.width, device=device)
            lower[:, rows, cols] = on_device["factor"]
            return Sampler(on_device["mean"], lower, None)
        return Sampler(on_device["mean"], on_device.get("directions"), on_device["deviation"])

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        if self.kind == "full":
            return {"factor": (self.width * (self.width + 1) // 2,)}
        if self.kind == "diagonal":
            return {"deviation": (self.width,)}
        return {"directions": (self.width, self.rank), "deviation": (self.width,)}

    def _factor(self, covariance: Tensor) -> dict[str, Tensor]:
        if self.kind == "full":
            eye = torch.eye(self.width, dtype=covariance.dtype, device=covariance.device)
            lower = torch.linalg.cholesky(covariance + self.jitter * eye)
            rows, cols = torch.tril_indices(self.width, self.width, device=lower.device)
            return {"factor": lower[rows, cols]}
        variance = covariance.diagonal() + self.jitter
        if self.kind == "diagonal":
            return {"deviation": variance.sqrt()}
        values, vectors = torch.linalg.eigh(covariance)
        leading = vectors[:, -self.rank :] * values[-self.rank :].clamp(min=0).sqrt()
        if leading.shape[1] < self.rank:  # fewer dimensions than the rank asked for
            leading = torch.nn.functional.pad(leading, (0, self.rank - leading.shape[1]))
        rest = (variance - leading.square().sum(1)).clamp(min=self.jitter)
        return {"directions": leading, "deviation": rest.sqrt()}

    def _borrow(self, covariances: list[Tensor]) -> Tensor:
        if covariances:
            return torch.stack(covariances).mean(0)
        if len(self):
            return self.sampler(self.tensors["mean"].device).covariance().mean(0)
        return torch.zeros(self.width, self.width)


class Sampler:
    """Draws features of all classes at once: mean + factor @ z + deviation * z'."""

    def __init__(
        self, mean_CD: Tensor, factor_CDK: Tensor | None, deviation_CD: Tensor | None
    ) -> None:
        self.mean_CD, self.factor_CDK, self.deviation_CD = mean_CD, factor_CDK, deviation_CD

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """[C, count, D]; the generator must live on the same device."""
        classes, width = self.mean_CD.shape

        def noise(size: int) -> Tensor:
            shape = (classes, count, size)
            return torch.randn(shape, generator=generator, device=self.mean_CD.device)

        feats_CnD = self.mean_CD[:, None].expand(-1, count, -1)
        if self.factor_CDK is not None:
            z_CnK = noise(self.factor_CDK.shape[2])
            feats_CnD = torch.baddbmm(feats_CnD, z_CnK, self.factor_CDK.transpose(1, 2))
        if self.deviation_CD is not None:
            feats_CnD = feats_CnD + noise(width) * self.deviation_CD[:, None]
        return feats_CnD

    def scaled(self, factor_C: Tensor) -> "Sampler":
        """The same Gaussians with their means multiplied."""
        return Sampler(self.mean_CD * factor_C[:, None], self.factor_CDK, self.deviation_CD)

    def covariance(self) -> Tensor:
        """[C, D, D]."""
        total = torch.zeros(len(self.mean_CD), *[self.mean_CD.shape[1]] * 2).to(self.mean_CD)
        if self.factor_CDK is not None:
            total = total + self.factor_CDK @ self.factor_CDK.transpose(1, 2)
        if self.deviation_CD is not None:
            total = total + torch.diag_embed(self.deviation_CD.square())
        return total
