"""L2P: a pool of prompts beside a frozen network; each image chooses its own by their keys.

Wang et al., "Learning to Prompt for Continual Learning", arXiv 2112.08654. The image's feature
under the bare network is the query. The prompts whose keys are nearest to it become extra tokens,
and training moves the keys towards the queries that chose them. All tasks share the pool.

Public code lets a batch vote for the prompts that all its images then use, also at test time. If
test images are sorted by class, this tells the network about an image's neighbours. So here every
image chooses for itself, without an option.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dafuse.backbones.prompts import PromptTokens, uniform_prompts
from dafuse.backbones.vit import ViT
from dafuse.data.stream import Task
from dafuse.heads.cosine import cosine_logits
from dafuse.heads.linear import linear_logits, linear_normal_init
from dafuse.methods.contract import Method
from dafuse.methods.options import NonNegativeFloat, Options, PositiveInt, Range
from dafuse.methods.schedule import Group, Schedule, constant
from dafuse.methods.training import init_class_weights
from dafuse.seeds import torch_generator


@dataclass(kw_only=True, eq=False)
class L2P(Method):
    """A shared pool of prompts with keys, and a linear head over the prompts' outputs.

    Args:
        epochs: training epochs over a task's images
        batch_size: images in an optimiser step
        lr: learning rate of Adam, constant
        weight_decay: weight decay of Adam, on prompts, keys and the new class weights
        pool_size: prompts in the pool
        prompt_length: tokens of a prompt
        prompts_per_image: prompts that an image chooses
        key_weight: weight of the loss's second term, which pulls chosen keys to the query
    """

    name = "l2p"
    summary = "frozen network, a shared pool of prompts, each image chooses its own by their keys"
    paper = "https://arxiv.org/abs/2112.08654"
    needs = "prompts"
    keeps = "the pool of prompts and keys, weights for each class"

    epochs: PositiveInt = 5
    batch_size: PositiveInt = 16
    lr: NonNegativeFloat = 0.001875
    weight_decay: NonNegativeFloat = 0.0
    pool_size: PositiveInt = 10
    prompt_length: PositiveInt = 5
    prompts_per_image: PositiveInt = 5
    key_weight: NonNegativeFloat = 0.1

    @classmethod
    def passes(cls, t: int, options: Options) -> int:
        return 2

    @classmethod
    def validate(cls, options: Options) -> None:
        super().validate(options)
        name = "method.prompts_per_image"
        Range(1, options["pool_size"]).require(name, options["prompts_per_image"])

    def __post_init__(self) -> None:
        super().__post_init__()
        device, width = self.trainer.device, self.trainer.network.width
        generator = torch_generator(self.trainer.seed, "prompts")
        prompts_MPD = uniform_prompts(generator, self.pool_size, self.prompt_length, width)
        keys_MD = uniform_prompts(generator, self.pool_size, width)
        self.prompts_MPD = nn.Parameter(prompts_MPD.to(device))
        self.keys_MD = nn.Parameter(keys_MD.to(device))
        network = self.trainer.network
        assert isinstance(network, ViT)  # only a ViT takes prompts
        self.attached = PromptTokens(network).to(device).eval()
        self.weights_CE = torch.zeros(0, width + 1, device=device)

    def learn(self, task: Task) -> dict[str, Any]:
        # new classes only: the loss is over the task's own, so older weights would not move
        new_CE = nn.Parameter(
            init_class_weights(self.trainer, task.index, task.size, init=linear_normal_init)
        )
        uses_M = torch.zeros(self.pool_size, device=self.trainer.device)

        def loss(images_B3SS: Tensor, labels_B: Tensor) -> Tensor:
            nearness_Bk, chosen_Bk = self._choose(images_B3SS)
            uses_M.add_(F.one_hot(chosen_Bk, self.pool_size).sum((0, 1)))
            logits = linear_logits(self._encode(images_B3SS, chosen_Bk), new_CE)
            pull = self.key_weight * nearness_Bk.sum(1).mean()
            return F.cross_entropy(logits, labels_B - task.first) - pull

        trained = Group([self.prompts_MPD, self.keys_MD, new_CE])
        settings = self.epochs, self.batch_size, self.lr, self.weight_decay
        schedule = Schedule(*settings, optimiser="adam", decay=constant)
        self.trainer.fit(task, self.attached, loss, [trained], schedule)
        self.weights_CE = torch.cat([self.weights_CE, new_CE.detach()])
        uses_M = self.trainer.summed({"uses": uses_M})["uses"]
        return {"prompt_shares": (uses_M / uses_M.sum()).tolist()}  # often a few take all

    @property
    def least_classes(self) -> int:
        return 2

    def logits(self, images_B3SS: Tensor) -> Tensor:
        _, chosen_Bk = self._choose(images_B3SS)
        return linear_logits(self._encode(images_B3SS, chosen_Bk), self.weights_CE)

    def _choose(self, images_B3SS: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and indices of the keys nearest to each image's query."""
        with torch.no_grad():
            query_BD = self.trainer.encode(images_B3SS, None)
        nearness_BM = cosine_logits(query_BD, self.keys_MD, scale=1.0)
        nearness_Bk, chosen_Bk = nearness_BM.topk(self.prompts_per_image, dim=1)
        return nearness_Bk, chosen_Bk

    def _encode(self, images_B3SS: Tensor, chosen_Bk: Tensor) -> Tensor:
        """Return features under the chosen prompts: the mean of the prompts' own outputs."""
        prompts_BPD = self.prompts_MPD[chosen_Bk].flatten(1, 2)
        return self.trainer.encode(images_B3SS, self.attached, prompts=prompts_BPD)

    def state(self) -> dict[str, Tensor]:
        return {
            "modules/prompts": self.prompts_MPD.detach().clone(),
            "modules/keys": self.keys_MD.detach().clone(),
            "classifier/rows": self.weights_CE,
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        with torch.no_grad():
            self.prompts_MPD.copy_(state["modules/prompts"])
            self.keys_MD.copy_(state["modules/keys"])
        self.weights_CE = state["classifier/rows"]
