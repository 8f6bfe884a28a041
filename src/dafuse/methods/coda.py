"""CODA-Prompt: each image's prompts are sums of components, weighted by attention.

Smith et al., "CODA-Prompt: COntinual Decomposed Attention-based Prompting for Rehearsal-Free
Continual Learning", arXiv 2211.13218. A task adds components to a pool in each of the first blocks:
a prompt P_m, a key K_m and an attention vector A_m. With q the image's feature under the bare
network, its prompt is Σ_m cos(q ⊙ A_m, K_m) P_m over all components so far. A task trains only the
components that it adds.

New components start orthonormal to each other and orthogonal to all earlier ones. Public code
achieves this only while the earlier ones are still orthogonal themselves. It also drops the last
incomplete batch of an epoch, and divides a fixed pool by a number of tasks known in advance; here
the pool grows.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dafuse.backbones.prompts import PromptPrefixes
from dafuse.data.stream import Task
from dafuse.errors import DafuseError
from dafuse.heads.linear import linear_logits, linear_normal_init
from dafuse.methods.contract import Method, prefixed, unprefixed
from dafuse.methods.options import NonNegativeFloat, Options, PositiveInt
from dafuse.methods.schedule import Group, Schedule
from dafuse.methods.training import init_class_weights
from dafuse.seeds import torch_generator

Components = dict[str, Tensor]  # "prompts" [L, M, P, D], "keys" and "attention" [L, M, D]


@dataclass(kw_only=True, eq=False)
class CODAPrompt(Method):
    """Prompts as weighted sums of components that grow with the tasks, and a linear head.

    Args:
        epochs: training epochs over a task's images
        batch_size: images in an optimiser step
        lr: learning rate of Adam at the start of each task; it falls almost to zero
        weight_decay: weight decay of Adam, on the task's components and class weights
        prompt_length: tokens of a prompt; half of them are keys of attention, half are values
        prompt_layers: blocks with prompts, from the first on
        components_per_task: components that a task adds in each block; the paper divides 100 by
            the number of tasks
        orthogonality: weight of the paper's penalty on components that are not orthonormal; 0 in
            the authors' code, where the orthogonal initialisation takes its place
    """

    name = "coda"
    summary = "CODA-Prompt: frozen network, prompts as attention-weighted sums of components"
    paper = "https://arxiv.org/abs/2211.13218"
    needs = "prompts"
    grows = True
    keeps = "components of prompts with keys and attention for each task, weights for each class"
    assumes = "how many tasks will come, through components_per_task"

    epochs: PositiveInt = 20
    batch_size: PositiveInt = 128
    lr: NonNegativeFloat = 0.001
    weight_decay: NonNegativeFloat = 0.0
    prompt_length: PositiveInt = 8
    prompt_layers: PositiveInt = 5
    components_per_task: PositiveInt = 5
    orthogonality: NonNegativeFloat = 0.0

    @classmethod
    def passes(cls, t: int, options: Options) -> int:
        return 2

    @classmethod
    def validate(cls, options: Options) -> None:
        super().validate(options)
        if (length := options["prompt_length"]) % 2:
            raise DafuseError(f"method.prompt_length must be even, not {length}")

    def __post_init__(self) -> None:
        super().__post_init__()
        network, device = self.trainer.network, self.trainer.device
        layers = min(self.prompt_layers, network.depth)
        self.pool: Components = {
            "prompts": torch.zeros(layers, 0, self.prompt_length, network.width, device=device),
            "keys": torch.zeros(layers, 0, network.width, device=device),
            "attention": torch.zeros(layers, 0, network.width, device=device),
        }
        self.attached = PromptPrefixes().eval()
        self.weights_CE = torch.zeros(0, network.width + 1, device=device)

    def learn(self, task: Task) -> dict[str, Any]:
        own = {name: nn.Parameter(self._start(name, task)) for name in self.pool}
        new_CE = nn.Parameter(
            init_class_weights(self.trainer, task.index, task.size, init=linear_normal_init)
        )

        def loss(images_B3SS: Tensor, labels_B: Tensor) -> Tensor:
            components = joined(self.pool, own)  # the earlier ones take part but are not trained
            logits = linear_logits(self._encode(images_B3SS, components), new_CE)
            value = F.cross_entropy(logits, labels_B - task.first)
            if self.orthogonality:
                value = value + self.orthogonality * sum(map(overlap, components.values()))
            return value

        settings = self.epochs, self.batch_size, self.lr, self.weight_decay
        schedule = Schedule(*settings, optimiser="adam", decay=quarter_cosine)
        trained = [Group([*own.values(), new_CE])]
        self.trainer.fit(task, self.attached, loss, trained, schedule)
        self.pool = {name: tensor.detach() for name, tensor in joined(self.pool, own).items()}
        self.weights_CE = torch.cat([self.weights_CE, new_CE.detach()])
        return {"components": self.pool["keys"].shape[1]}

    @property
    def least_classes(self) -> int:
        return 2

    def logits(self, images_B3SS: Tensor) -> Tensor:
        return linear_logits(self._encode(images_B3SS, self.pool), self.weights_CE)

    def _encode(self, images_B3SS: Tensor, components: Components) -> Tensor:
        with torch.no_grad():
            query_BD = self.trainer.encode(images_B3SS, None)
        prompts_BLPD = composed_prompts(query_BD, components)
        prompts_BL2HD = prompts_BLPD.unflatten(2, (2, -1))  # first half keys, last half values
        return self.trainer.encode(images_B3SS, self.attached, prompts=prompts_BL2HD)

    def _start(self, name: str, task: Task) -> Tensor:
        """Return new components of one kind; orthogonality treats each as a single vector."""
        generator = torch_generator(self.trainer.seed, "prompts", name, task.index)
        old_LMV = self.pool[name].flatten(2).cpu()
        layers, _, size = old_LMV.shape
        random_LNV = torch.randn(layers, self.components_per_task, size, generator=generator)
        new_LNV = orthonormal_to(old_LMV, random_LNV).to(self.trainer.device)
        return new_LNV.unflatten(2, self.pool[name].shape[2:])

    def state(self) -> dict[str, Tensor]:
        return {**prefixed("modules/components", self.pool), "classifier/rows": self.weights_CE}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.pool = unprefixed(state, "modules/components")
        self.weights_CE = state["classifier/rows"]


def composed_prompts(query_BD: Tensor, components: Components) -> Tensor:
    """Return Σ_m cos(q ⊙ A_m, K_m) P_m for every block at once: [B, L, P, D].

    The cosine is written as sums over D alone: (q ⊙ A)·K = q·(A ⊙ K) and |q ⊙ A|² = q²·A². So no
    tensor has images, components and D as axes at once.
    """
    attention_LMD, keys_LMD = components["attention"], F.normalize(components["keys"], dim=2)
    dot_BLM = torch.einsum("bd,lmd->blm", query_BD, attention_LMD * keys_LMD)
    square_BLM = torch.einsum("bd,lmd->blm", query_BD.square(), attention_LMD.square())
    weights_BLM = dot_BLM / square_BLM.clamp_min(1e-12).sqrt()
    return torch.einsum("blm,lmpd->blpd", weights_BLM, components["prompts"])


def joined(old: Components, new: Components | dict[str, nn.Parameter]) -> Components:
    return {name: torch.cat([old[name], new[name]], dim=1) for name in old}


def orthonormal_to(old_LMV: Tensor, random_LNV: Tensor) -> Tensor:
    """Make the random vectors orthonormal, and orthogonal to the old ones' span (Gram-Schmidt).

    If V dimensions have no room for all (M + N > V), the vectors beyond stay as drawn, at length
    1: random directions are nearly orthogonal.
    """
    known = old_LMV.shape[1]
    columns_LVK = torch.cat([old_LMV, random_LNV], dim=1).double().transpose(1, 2)
    basis_LVK, triangle_LKK = torch.linalg.qr(columns_LVK)
    signs_LK = triangle_LKK.diagonal(dim1=1, dim2=2).sign()  # QR leaves the signs open
    new_LVN = (basis_LVK * signs_LK[:, None])[:, :, known:]
    beyond_LNV = F.normalize(random_LNV[:, new_LVN.shape[2] :], dim=2)
    return torch.cat([new_LVN.transpose(1, 2).float(), beyond_LNV], dim=1)


def overlap(components_LM_: Tensor) -> Tensor:
    """Return how far components are from orthonormal: the mean square of B Bᵀ - I over blocks."""
    rows_LMV = components_LM_.flatten(2)
    gram_LMM = rows_LMV @ rows_LMV.transpose(1, 2)
    return (gram_LMM - torch.eye(gram_LMM.shape[1], device=gram_LMM.device)).square().mean()


def quarter_cosine(epoch: int, epochs: int) -> float:
    """Return the authors' decay: cos(99πe / (200(E-1))), from 1 to almost 0 in the last epoch."""
    return math.cos(99 * math.pi * epoch / (200 * (epochs - 1))) if epochs > 1 else 1.0
