"""Class memory: a Gaussian over features for each class, from which new features are drawn.

For each class it keeps the mean and a factor of the covariance; a sample is one matrix product.
The kinds, and what they cost in numbers per class at width D:

    full      a packed lower-triangular Cholesky factor     D + D (D + 1) / 2
    diagonal  the std of each coordinate                    D + D
    low_rank  the leading directions, and the std           D + D k + D
              of the rest in each coordinate
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from dafuse.heads.cosine import exact_dtype

KINDS = ("full", "diagonal", "low_rank")
JITTER = 1e-4  # added to every variance, because the covariance of few images is singular
ENOUGH = 10  # images from which on a class no longer borrows from the pooled covariance


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

        A class of one image has no covariance of its own. It takes the mean covariance of the
        classes learned with it or, if they have none, of all classes known so far.
        """
        exact = exact_dtype(feats_ND.device)
        grouped = [feats_ND[labels_N == first + c].to(exact) for c in range(classes)]
        means = torch.stack([f.mean(0) for f in grouped])
        own = {c: torch.cov(f.T) for c, f in enumerate(grouped) if len(f) > 1}
        borrowed = self._borrow(list(own.values())).to(means)
        factors = [self._factor(own.get(c, borrowed)) for c in range(classes)]
        new = {"mean": means} | {k: torch.stack([f[k] for f in factors]) for k in factors[0]}
        for name, tensor in new.items():
            old = self.tensors[name].to(tensor.device)
            self.tensors[name] = torch.cat([old, tensor.to(self.dtype)])

    def merge(self, feats_ND: Tensor, row: int, images: int) -> None:
        """Learn more images of the class at this index, whose statistics are of so many images.

        Mean and covariance become those of all images together. The sums of squares about the means
        add up to S = S₁ + S₂ + (n₁ n₂ / n) δδᵀ, where δ is the difference of the two means.
        """
        feats_ND, more = feats_ND.to(exact_dtype(feats_ND.device)), len(feats_ND)
        mean_D, total = self.tensors["mean"][row].to(feats_ND), images + more
        apart_D = feats_ND.mean(0) - mean_D
        centred_ND = feats_ND - feats_ND.mean(0)
        scatter_DD = centred_ND.T @ centred_ND
        scatter_DD += torch.outer(apart_D, apart_D) * (images * more / total)
        scatter_DD += self._covariance(row).to(feats_ND) * (images - 1)
        merged = self._factor(scatter_DD / (total - 1))
        self._replace(row, {"mean": mean_D + apart_D * (more / total), **merged})

    def borrowing(self, images: Sequence[int]) -> "ClassMemory":
        """Return a memory to draw from, in which classes of few images borrow covariance from all.

        The covariance of few images is noise in most directions. So a class of n < `ENOUGH` images
        keeps (n - 1) / (ENOUGH - 1) of its own and takes the rest from the covariance pooled over
        all classes. If every class has one image, the variances of the class means stand in for it.
        """
        few = [row for row, count in enumerate(images) if count < ENOUGH]
        if not few:
            return self
        pooled_DD = self._pooled(images)
        lent = self.keeping(range(len(self)))
        for row in few:
            own = (images[row] - 1) / (ENOUGH - 1)
            mixed_DD = torch.lerp(pooled_DD, self._covariance(row), own)
            lent._replace(row, self._factor(mixed_DD))
        return lent

    def keeping(self, rows: Iterable[int]) -> "ClassMemory":
        """Return a memory of the classes at these indices, in this order."""
        kept = ClassMemory(self.width, self.kind, self.rank, self.dtype, self.jitter)
        kept.tensors = {name: tensor[list(rows)] for name, tensor in self.tensors.items()}
        return kept

    def sampler(self, device: torch.device, dtype: torch.dtype = torch.float32) -> "Sampler":
        """Return a sampler: factors unpacked once, on the device."""
        on_device = {k: v.to(device).to(dtype) for k, v in self.tensors.items()}
        if self.kind == "full":
            lower = on_device["mean"].new_zeros(len(self), self.width, self.width)
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

    def _covariance(self, row: int) -> Tensor:
        """Return a class's covariance [D, D] without the jitter; in float64 where there is one."""
        device = self.tensors["mean"].device
        covariance_DD = self.keeping([row]).sampler(device, exact_dtype(device)).covariance()[0]
        covariance_DD.diagonal().sub_(self.jitter)
        return covariance_DD

    def _pooled(self, images: Sequence[int]) -> Tensor:
        """Return the pooled covariance [D, D], weighted by degrees of freedom (n - 1)."""
        freedom = [count - 1 for count in images]
        if any(freedom):
            parts = (self._covariance(row) * n for row, n in enumerate(freedom) if n)
            return sum(parts, start=torch.zeros(())) / sum(freedom)
        means_CD = self.tensors["mean"].to(exact_dtype(self.tensors["mean"].device))
        return torch.diag(means_CD.var(0, correction=0))

    def _replace(self, row: int, new: dict[str, Tensor]) -> None:
        for name, tensor in new.items():
            changed = self.tensors[name].to(tensor.device, copy=True)
            changed[row] = tensor.to(self.dtype)
            self.tensors[name] = changed

    def _borrow(self, covariances: list[Tensor]) -> Tensor:
        if covariances:
            return torch.stack(covariances).mean(0)
        if len(self):
            return self.sampler(self.tensors["mean"].device).covariance().mean(0)
        return torch.zeros(self.width, self.width)


class Sampler:
    """Source of features of all classes at once: mean + factor @ z + std * z'."""

    def __init__(self, mean_CD: Tensor, factor_CDK: Tensor | None, std_CD: Tensor | None) -> None:
        self.mean_CD, self.factor_CDK, self.std_CD = mean_CD, factor_CDK, std_CD

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw features [C, count, D]; the generator must be on the same device."""
        classes, width = self.mean_CD.shape

        def noise(size: int) -> Tensor:
            shape = (classes, count, size)
            return torch.randn(shape, generator=generator, device=self.mean_CD.device)

        feats_CnD = self.mean_CD[:, None].expand(-1, count, -1)
        if self.factor_CDK is not None:
            z_CnK = noise(self.factor_CDK.shape[2])
            feats_CnD = torch.baddbmm(feats_CnD, z_CnK, self.factor_CDK.transpose(1, 2))
        if self.std_CD is not None:
            feats_CnD = feats_CnD + noise(width) * self.std_CD[:, None]
        return feats_CnD

    def scaled(self, factor_C: Tensor) -> "Sampler":
        """Return the same Gaussians with their means multiplied."""
        return Sampler(self.mean_CD * factor_C[:, None], self.factor_CDK, self.std_CD)

    def widened(self, factor_C: Tensor) -> "Sampler":
        """Return the same Gaussians with their stds multiplied."""
        factor, std = self.factor_CDK, self.std_CD
        if factor is not None:
            factor = factor * factor_C[:, None, None]
        if std is not None:
            std = std * factor_C[:, None]
        return Sampler(self.mean_CD, factor, std)

    def covariance(self) -> Tensor:
        """Return the covariances [C, D, D]."""
        total = torch.zeros(len(self.mean_CD), *[self.mean_CD.shape[1]] * 2).to(self.mean_CD)
        if self.factor_CDK is not None:
            total = total + self.factor_CDK @ self.factor_CDK.transpose(1, 2)
        if self.std_CD is not None:
            total = total + torch.diag_embed(self.std_CD.square())
        return total
