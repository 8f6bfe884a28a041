"""DualPrompt: one prompt for all tasks in the first blocks, one per task in the blocks after them.

Wang et al., "DualPrompt: Complementary Prompting for Rehearsal-free Continual Learning", arXiv
2204.04799. Prompts are prefixes: keys and values put before those of attention. Every task trains
the general prompt, and its own expert prompt. To predict, an image takes the expert whose key is
nearest to the query, its feature under the bare network.

Public code fixes the number of experts in advance, and later tasks share them; here each task adds
one. Some of it mixes the axis of keys and values with that of the batch (a reshape for a permute),
and lets a batch vote for one expert. Neither is done here.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dafuse.backbones.prompts import PromptPrefixes, uniform_prompts
from dafuse.data.stream import Task
from dafuse.heads.cosine import cosine_logits
from dafuse.heads.linear import linear_logits, linear_normal_init
from dafuse.methods.contract import Method
from dafuse.methods.options import NonNegativeFloat, NonNegativeInt, Options, PositiveInt
from dafuse.methods.schedule import Group, Schedule, constant
from dafuse.methods.training import init_class_weights
from dafuse.seeds import torch_generator


@dataclass(kw_only=True, eq=False)
class DualPrompt(Method):
    """A general and an expert prompt for each image, and a linear head.

    Args:
        epochs: training epochs over a task's images
        batch_size: images in an optimiser step
        lr: learning rate of Adam, constant
        weight_decay: weight decay of Adam, on prompts, the task's key and its class weights
        prompt_length: keys, and as many values, that a prompt adds to a block's attention
        general_layers: blocks with the general prompt, from the first on
        expert_layers: blocks with an expert prompt, after those
        key_weight: weight of the loss's second term, which pulls the task's key to the queries
    """

    name = "dualprompt"
    summary = "frozen network, a general prompt and one expert prompt a task, chosen by keys"
    paper = "https://arxiv.org/abs/2204.04799"
    needs = "prompts"
    grows = True
    keeps = "the general prompt, an expert prompt and its key for each task, weights for each class"

    epochs: PositiveInt = 5
    batch_size: PositiveInt = 24
    lr: NonNegativeFloat = 0.001
    weight_decay: NonNegativeFloat = 0.0
    prompt_length: PositiveInt = 5
    general_layers: NonNegativeInt = 2
    expert_layers: PositiveInt = 3
    key_weight: NonNegativeFloat = 0.1

    @classmethod
    def passes(cls, t: int, options: Options) -> int:
        return 2

    def __post_init__(self) -> None:
        super().__post_init__()
        network, device = self.trainer.network, self.trainer.device
        width, depth = network.width, network.depth
        general = min(self.general_layers, depth - 1)  # a shallow network: experts get one block
        experts = min(self.expert_layers, depth - general)
        self.prompt_shape = 2, self.prompt_length, width  # of a block: keys, then values
        self.general_G2PD = nn.Parameter(self._start("general", general, *self.prompt_shape))
        self.experts_TL2PD = torch.zeros(0, experts, *self.prompt_shape, device=device)
        self.keys_TD = torch.zeros(0, width, device=device)
        self.attached = PromptPrefixes().eval()
        self.weights_CE = torch.zeros(0, width + 1, device=device)

    def learn(self, task: Task) -> dict[str, Any]:
        expert_1L2PD, key_1D = self._new_expert(task)
        new_CE = nn.Parameter(
            init_class_weights(self.trainer, task.index, task.size, init=linear_normal_init)
        )

        def loss(images_B3SS: Tensor, labels_B: Tensor) -> Tensor:
            nearness_B1 = cosine_logits(self._query(images_B3SS), key_1D, scale=1.0)
            own_BL2PD = expert_1L2PD.expand(len(images_B3SS), -1, -1, -1, -1)
            logits = linear_logits(self._encode(images_B3SS, own_BL2PD), new_CE)
            pull = self.key_weight * nearness_B1.mean()
            return F.cross_entropy(logits, labels_B - task.first) - pull

        trained = Group([self.general_G2PD, expert_1L2PD, key_1D, new_CE])
        settings = self.epochs, self.batch_size, self.lr, self.weight_decay
        schedule = Schedule(*settings, optimiser="adam", decay=constant)
        self.trainer.fit(task, self.attached, loss, [trained], schedule)
        self.experts_TL2PD = torch.cat([self.experts_TL2PD, expert_1L2PD.detach()])
        self.keys_TD = torch.cat([self.keys_TD, key_1D.detach()])
        self.weights_CE = torch.cat([self.weights_CE, new_CE.detach()])
        return {}

    @property
    def least_classes(self) -> int:
        return 2

    def logits(self, images_B3SS: Tensor) -> Tensor:
        experts_B = cosine_logits(self._query(images_B3SS), self.keys_TD).argmax(1)
        feats_BD = self._encode(images_B3SS, self.experts_TL2PD[experts_B])
        return linear_logits(feats_BD, self.weights_CE)

    def _new_expert(self, task: Task) -> tuple[nn.Parameter, nn.Parameter]:
        """Return the task's prompt, initialised as the last task's, and its newly drawn key."""
        start_1L2PD = self.experts_TL2PD[-1:].clone()
        if task.number == 1:
            start_1L2PD = self._start("expert", 1, *self.experts_TL2PD.shape[1:])
        key_1D = self._start(f"key {task.index}", 1, self.trainer.network.width)
        return nn.Parameter(start_1L2PD), nn.Parameter(key_1D)

    def _query(self, images_B3SS: Tensor) -> Tensor:
        with torch.no_grad():
            return self.trainer.encode(images_B3SS, None)

    def _encode(self, images_B3SS: Tensor, experts_BL2PD: Tensor) -> Tensor:
        general_BG2PD = self.general_G2PD.expand(len(images_B3SS), -1, -1, -1, -1)
        prompts = torch.cat([general_BG2PD, experts_BL2PD], dim=1)  # block after block
        return self.trainer.encode(images_B3SS, self.attached, prompts=prompts)

    def _start(self, purpose: str, *shape: int) -> Tensor:
        generator = torch_generator(self.trainer.seed, "prompts", purpose)
        return uniform_prompts(generator, *shape).to(self.trainer.device)

    def state(self) -> dict[str, Tensor]:
        return {
            "modules/general": self.general_G2PD.detach().clone(),
            "modules/experts": self.experts_TL2PD,
            "modules/keys": self.keys_TD,
            "classifier/rows": self.weights_CE,
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        with torch.no_grad():
            self.general_G2PD.copy_(state["modules/general"])
        self.experts_TL2PD, self.keys_TD = state["modules/experts"], state["modules/keys"]
        self.weights_CE = state["classifier/rows"]
