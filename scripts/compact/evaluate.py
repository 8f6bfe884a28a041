"""Hold compact networks against their teacher on photographs that none of them was distilled with.

    python scripts/compact/evaluate.py --known known.npz --held-out held-out.npz \
        --teacher deit_tiny_patch16_224.safetensors compact.safetensors ...

Both packs hold the same number of photographs of each of ImageNet's 1,000 classes, in its order.
A line for each network: top-1 by the teacher's frozen head on the network's class token, the mean
cosine to the teacher's class token, and the accuracy of the nearest mean and of LDA (one covariance
for all classes, shrunk as Ledoit and Wolf do) that learn the known photographs. These two also
among the 118 breeds of dogs alone.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import timm
import torch
import torch.nn.functional as F
from images import Images, load_images
from networks import TEACHER_PX, make_teacher
from safetensors.torch import load_file
from torch import Tensor, nn
from views import normalise, plain_views, render

from dafuse.experiments.common_heads import lda

SIDE = 240  # pixels of the squares that hold the photographs
CLASSES = 1000
DOGS = 151, 268  # first and last of their classes

Labelled = tuple[Tensor, Tensor]  # features [N, D] and labels [N]


def load_student(file: Path) -> tuple[nn.Module, int]:
    """A network by timm's names, whose size its position embeddings and patches tell."""
    tensors = {name: tensor.float() for name, tensor in load_file(file).items()}
    patch = tensors["patch_embed.proj.weight"].shape[-1]
    px = round((tensors["pos_embed"].shape[1] - 1) ** 0.5) * patch
    student = timm.create_model(
        "vit_tiny_patch16_224", img_size=px, patch_size=patch, num_classes=0
    )
    student.load_state_dict(tensors)
    return student.eval(), px


@torch.inference_mode()
def class_tokens(vit: nn.Module, px: int, images: Images) -> Tensor:
    """Class tokens [N, D] after the final norm, under the test transform."""
    found = []
    for chosen in torch.arange(len(images), device=images.sizes_N2.device).split(250):
        shown = normalise(render(plain_views(images.take(chosen)), px))
        found.append(vit.forward_features(shown)[:, 0])
    return torch.cat(found)


def measure(
    vit: nn.Module, px: int, head: nn.Module, theirs: Tensor, known: Images, held: Images
) -> dict[str, float]:
    """Top-1 by the teacher's head, cosine to its class tokens, and what the known images teach."""
    taught = class_tokens(vit, px, known), classes_of(known)
    asked = class_tokens(vit, px, held), classes_of(held)
    return {
        "top1": percent(head(asked[0]).argmax(1) == asked[1]),
        "cosine": round(F.cosine_similarity(asked[0], theirs).mean().item(), 4),
        "nearest_mean": nearest_mean(taught, asked),
        "lda": discriminant(taught, asked),
        "dogs_nearest_mean": nearest_mean(only_dogs(taught), only_dogs(asked)),
        "dogs_lda": discriminant(only_dogs(taught), only_dogs(asked)),
    }


def nearest_mean(taught: Labelled, asked: Labelled) -> float:
    """Accuracy of the largest cosine to a class mean of unit vectors."""
    one_hot = F.one_hot(taught[1]).float()
    means = F.normalize(one_hot.T @ F.normalize(taught[0]))
    return percent((F.normalize(asked[0]) @ means.T).argmax(1) == asked[1])


def discriminant(taught: Labelled, asked: Labelled) -> float:
    """Accuracy of linear discriminant analysis."""
    feats, labels = (tensor.cpu().numpy() for tensor in taught)
    predict = lda(feats.astype(np.float64), labels)
    return percent(torch.from_numpy(predict(asked[0].cpu().numpy())) == asked[1].cpu())


def only_dogs(labelled: Labelled) -> Labelled:
    feats, labels = labelled
    chosen = (labels >= DOGS[0]) & (labels <= DOGS[1])
    return feats[chosen], labels[chosen] - DOGS[0]


def percent(right: Tensor) -> float:
    return round(100 * right.float().mean().item(), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("students", type=Path, nargs="*", help="weights by timm's names")
    parser.add_argument("--known", type=Path, nargs="+", required=True)
    parser.add_argument("--held-out", type=Path, nargs="+", required=True)
    parser.add_argument("--teacher", type=Path)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    known, held = (load_images(files, SIDE, device) for files in (args.known, args.held_out))
    teacher = make_teacher(args.teacher, TEACHER_PX).to(device)
    theirs = class_tokens(teacher, TEACHER_PX, held)
    networks = {"teacher": (teacher, TEACHER_PX)}
    networks |= {str(file): load_student(file) for file in args.students}
    for name, (vit, px) in networks.items():
        found = measure(vit.to(device), px, teacher.head, theirs, known, held)
        print(json.dumps({"network": name, "pixels": px} | found), flush=True)


def classes_of(images: Images) -> Tensor:
    """The same number of each class in order; then, if some are left, one more of each."""
    each, more = divmod(len(images), CLASSES)
    if more or not each:
        raise SystemExit(f"{len(images)} images are not the same number of each class")
    order = torch.arange(CLASSES, device=images.sizes_N2.device)
    if each == 1:
        return order
    return torch.cat([order.repeat_interleave(each - 1), order])


if __name__ == "__main__":
    main()
