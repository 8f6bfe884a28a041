"""Teacher and student: DeiT-Tiny, and a network of the same kind that sees a third of its tokens.

`run_blocks` walks a network's blocks and keeps what the losses compare.
"""

from functools import cache
from pathlib import Path
from typing import NamedTuple

import timm
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn
from torch import Tensor, nn

TEACHER = "deit_tiny_patch16_224"
TEACHER_PX, STUDENT_PX, PATCH = 224, 128, 16
GRID = STUDENT_PX // PATCH  # the student's patches a side, to which the teacher's 14 are pooled
FIRST_READ = 4  # block from which closed-form heads read features (dafuse.backbones.depths)
PATCH_DEPTHS = (4, 6, 8, 10, 12)  # after so many blocks, patch tokens are compared


class Seen(NamedTuple):
    """A network's tokens of a batch."""

    cls_ND: Tensor  # class token after the final norm
    inner_NLD: Tensor  # class token after each block that is read
    patches_NKPD: Tensor  # patch tokens at K depths, on the student's grid


class Patches(nn.Module):
    """A patch embedding whose weight is a matrix, as Muon takes it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, 3 * PATCH**2))
        self.bias = nn.Parameter(torch.zeros(width))
        nn.init.trunc_normal_(self.weight, std=0.02)

    def forward(self, images_N3SS: Tensor) -> Tensor:
        x = images_N3SS.unflatten(3, (-1, PATCH)).unflatten(2, (-1, PATCH))
        x_NPD = x.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        return F.linear(x_NPD, self.weight, self.bias)


def make_student() -> VisionTransformer:
    """The student with random weights."""
    student = timm.create_model("vit_tiny_patch16_224", img_size=STUDENT_PX, num_classes=0)
    student.patch_embed = Patches(student.embed_dim)
    return student


def make_teacher(weights: Path | None, px: int) -> VisionTransformer:
    """DeiT-Tiny with its head, frozen, its positions resized to this many pixels."""
    teacher = timm.create_model(TEACHER, pretrained=weights is None, img_size=px)
    if weights:
        tensors = {name: tensor.float() for name, tensor in load_file(weights).items()}
        teacher.load_state_dict(checkpoint_filter_fn(tensors, teacher))
    return teacher.eval().requires_grad_(False)


def embed(vit: VisionTransformer, images: Tensor) -> Tensor:
    """All tokens before the first block."""
    return vit._pos_embed(vit.patch_embed(images))


def run_blocks(vit: VisionTransformer, images: Tensor) -> Seen:
    x_NTD, inner, patches = embed(vit, images), [], []
    for depth, block in enumerate(vit.blocks, 1):
        x_NTD = block(x_NTD)
        if depth >= FIRST_READ:
            inner.append(x_NTD[:, 0])
        if depth in PATCH_DEPTHS:
            patches.append(_on_grid(x_NTD[:, 1:]))
    return Seen(vit.norm(x_NTD[:, 0]), torch.stack(inner, 1), torch.stack(patches, 1))


def _on_grid(x_NPD: Tensor) -> Tensor:
    """Patch tokens on the student's grid [N, 64, D], averaged where there are more of them."""
    side = round(x_NPD.shape[1] ** 0.5)
    return x_NPD if side == GRID else pooling(side).to(x_NPD) @ x_NPD


@cache
def pooling(side: int) -> Tensor:
    """The matrix [64, side x side] of adaptive average pooling to the student's grid."""
    rows_GS = F.adaptive_avg_pool1d(torch.eye(side)[None], GRID)[0].T.contiguous()
    return torch.kron(rows_GS, rows_GS)


def weights_of(student: VisionTransformer) -> dict[str, Tensor]:
    """Float16, by timm's names."""
    tensors = {name: t.detach().half().cpu() for name, t in student.state_dict().items()}
    patches = tensors.pop("patch_embed.weight")
    tensors["patch_embed.proj.weight"] = patches.unflatten(1, (3, PATCH, PATCH)).contiguous()
    tensors["patch_embed.proj.bias"] = tensors.pop("patch_embed.bias")
    return tensors
