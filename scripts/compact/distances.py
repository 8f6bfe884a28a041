"""Distances of the student from its teacher: block by block, and as a whole."""

import torch
import torch.nn.functional as F
from networks import Seen, embed, run_blocks
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

FLOOR = 0.1  # least deviation of a channel, as a share of the mean deviation of its layer


def relative(ours: Tensor, theirs: Tensor, std: Tensor) -> Tensor:
    return ((ours.float() - theirs.float()) / std).square().mean()


def deviation(x: Tensor, over: list[int]) -> Tensor:
    """The standard deviation of each channel, so that all channels weigh about the same."""
    std = x.float().std(over, keepdim=True)
    return std.clamp(min=FLOOR * std.mean().item())


class BlockByBlock:
    """Each half of a block gets the input of the teacher's half and imitates its output.

    So every half is a shallow network of its own that learns at once, whatever the others do. The
    teacher sees the student's pixels and has as many tokens: its positions are resized.
    """

    names = ("embedding", "attention maps", "attention", "mlp", "norm")
    weights = (1.0, 1.0, 1.0, 1.0, 1.0)

    def __init__(self, student: VisionTransformer, teacher: VisionTransformer) -> None:
        self.student, self.teacher = student, teacher
        self.compare = compare_halves

    def compile(self) -> None:
        self.compare = torch.compile(compare_halves)

    @torch.no_grad()
    def measure(self, images: Tensor) -> None:
        """Take the teacher's deviations from a batch."""
        x = embed(self.teacher, images.to(self.dtype))
        self.embedding_std, self.stds = deviation(x, [0, 1]), []
        for block in self.teacher.blocks:
            _, attention = attend(block, x)
            mlp = block.mlp(block.norm2(x + attention))
            self.stds.append((deviation(attention, [0, 1]), deviation(mlp, [0, 1])))
            x = x + attention + mlp
        self.norm_std = deviation(self.teacher.norm(x), [0, 1])

    @property
    def dtype(self) -> torch.dtype:
        return self.teacher.pos_embed.dtype

    def __call__(self, images: Tensor) -> Tensor:
        student, teacher = self.student, self.teacher
        with torch.no_grad():
            x = embed(teacher, images.to(self.dtype))
        first = relative(embed(student, images), x, self.embedding_std)
        found = []
        for ours, theirs, stds in zip(student.blocks, teacher.blocks, self.stds, strict=True):
            x, distances = self.compare(ours, theirs, x, *stds)
            found.append(distances)
        last = relative(student.norm(x), teacher.norm(x), self.norm_std)
        maps, attention, mlp = torch.stack(found).mean(0)
        return torch.stack([first, maps, attention, mlp, last])


def compare_halves(
    ours: Block, theirs: Block, x: Tensor, attention_std: Tensor, mlp_std: Tensor
) -> tuple[Tensor, Tensor]:
    """The teacher's next tokens, and three distances: attention maps, attention, MLP."""
    with torch.no_grad():
        their_maps, their_attention = attend(theirs, x)
        h = x + their_attention
        their_mlp = theirs.mlp(theirs.norm2(h))
    our_maps, our_attention = attend(ours, x)
    our_mlp = ours.mlp(ours.norm2(h))
    maps = F.kl_div(our_maps, their_maps, log_target=True, reduction="sum") / maps_in(our_maps)
    distances = [
        maps,
        relative(our_attention, their_attention, attention_std),
        relative(our_mlp, their_mlp, mlp_std),
    ]
    return h + their_mlp, torch.stack(distances)


def maps_in(maps_NHTT: Tensor) -> int:
    return maps_NHTT.shape[0] * maps_NHTT.shape[1] * maps_NHTT.shape[2]


def attend(block: Block, x_NTD: Tensor) -> tuple[Tensor, Tensor]:
    """Logarithms of the attention maps [N, H, T, T] as float32, and the attention's output."""
    attn = block.attn
    qkv = attn.qkv(block.norm1(x_NTD)).unflatten(2, (3, attn.num_heads, attn.head_dim))
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    maps = (attn.scale * q @ k.transpose(2, 3)).float().log_softmax(3)
    out = maps.exp().to(v.dtype) @ v
    return maps, attn.proj(out.transpose(1, 2).flatten(2))


class Whole:
    """Compares what student and teacher make of the same views, each at its own size."""

    names = ("class token", "logits", "inner class tokens", "patches")
    weights = (2.0, 1.0, 0.5, 1.0)

    def __init__(self, student: VisionTransformer, teacher: VisionTransformer) -> None:
        self.student, self.teacher = student, teacher
        self.head: nn.Linear = teacher.head

    def compile(self) -> None:
        for block in (*self.student.blocks, *self.teacher.blocks):
            block.compile()

    @torch.no_grad()
    def teach(self, images: Tensor) -> Seen:
        return run_blocks(self.teacher, images.to(self.teacher.pos_embed.dtype))

    def measure(self, images: Tensor) -> None:
        """Take the teacher's deviations from a batch."""
        cls, inner, patches = self.teach(images)
        self.stds = deviation(cls, [0]), deviation(inner, [0]), deviation(patches, [0, 2])

    def logits(self, cls_ND: Tensor) -> Tensor:
        """The teacher's own frozen head on anyone's class token."""
        return F.linear(cls_ND.float(), self.head.weight.float(), self.head.bias.float())

    def __call__(self, small: Tensor, large: Tensor) -> Tensor:
        theirs, ours = self.teach(large), run_blocks(self.student, small)
        log_p, log_q = (self.logits(seen.cls_ND).log_softmax(1) for seen in (theirs, ours))
        kl = F.kl_div(log_q, log_p, log_target=True, reduction="batchmean")
        cls, inner, patches = map(relative, ours, theirs, self.stds)
        return torch.stack([cls, kl, inner, patches])
