"""Measure a frozen backbone's features: nearest class mean and ridge, few images a class.

    python scripts/evaluate_features.py --cifar data/cifar100 --backbone compact
    python scripts/evaluate_features.py --cifar data/cifar100 --backbone deit \
        --weights deit_tiny_patch16_224.safetensors

`--cifar` is a tree `{train,test}/<class>/<image>` (of any data set). The first `--per-class`
training images of each class by file name are used, and all test images. The feature is the class
token after the final norm; the ridge's strength is chosen on every fifth training image, never on
test images.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path

import timm
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset
from torchvision import transforms
from torchvision.datasets import ImageFolder

COMPACT = Path(__file__).parents[1] / "src/dafuse/backbones/dafuse_compact_patch8_64.safetensors"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
STRENGTHS = [10.0**e for e in range(-2, 6)]


def load_backbone(kind: str, weights: Path | None) -> tuple[nn.Module, int]:
    """The model without its head, and its input size."""
    if kind == "compact":
        model = timm.create_model("vit_tiny_patch16_224", img_size=64, patch_size=8, num_classes=0)
        weights = weights or COMPACT
    else:
        model = timm.create_model(
            "deit_tiny_patch16_224", pretrained=weights is None, num_classes=0
        )
    if weights:
        tensors = load_file(weights)
        model.load_state_dict({k: t for k, t in tensors.items() if not k.startswith("head.")})
    return model.float().eval(), model.patch_embed.img_size[0]


@torch.inference_mode()
def extract(model: nn.Module, px: int, tree: Path, per_class: int | None) -> tuple[Tensor, Tensor]:
    """Features [N, D] and labels [N] of the first `per_class` images of each class (None: all)."""
    bicubic = transforms.InterpolationMode.BICUBIC
    transform = transforms.Compose(
        [
            transforms.Resize(round(px * 256 / 224), interpolation=bicubic),
            transforms.CenterCrop(px),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )
    folder = ImageFolder(tree, transform)
    taken, seen = [], dict.fromkeys(range(len(folder.classes)), 0)
    for i, label in enumerate(folder.targets):  # ImageFolder sorts by class, then by file name
        seen[label] += 1
        if per_class is None or seen[label] <= per_class:
            taken.append(i)
    loader = DataLoader(Subset(folder, taken), batch_size=100)
    feats_ND = torch.cat([model.forward_features(images)[:, 0] for images, _ in loader])
    return feats_ND, torch.tensor(folder.targets)[taken]


def nearest_mean(train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> float:
    """Accuracy of cosine similarity to the class means."""
    (feats_ND, labels_N), (test_MD, truth_M) = train, test
    one_hot_NC = F.one_hot(labels_N).float()
    means_CD = F.normalize(one_hot_NC.T @ F.normalize(feats_ND))
    return (F.normalize(test_MD) @ means_CD.T).argmax(1).eq(truth_M).float().mean().item()


def ridge(train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], strength: float) -> float:
    """Accuracy of ridge regression on one-hot labels, over standardised features with a bias."""
    (feats_ND, labels_N), (test_MD, truth_M) = train, test
    mean, std = feats_ND.mean(0), feats_ND.std(0)
    x_ND, z_MD = ((f - mean).double() / std for f in (feats_ND, test_MD))
    y_NC = F.one_hot(labels_N).double()
    gram_DD = x_ND.T @ x_ND + strength * torch.eye(x_ND.shape[1])
    weight_DC = torch.linalg.solve(gram_DD, x_ND.T @ (y_NC - y_NC.mean(0)))
    return (z_MD @ weight_DC + y_NC.mean(0)).argmax(1).eq(truth_M).float().mean().item()


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("--cifar", type=Path, required=True, help="tree of train/ and test/")
    parser.add_argument("--backbone", choices=("compact", "deit"), default="compact")
    parser.add_argument("--weights", type=Path, help="safetensors; by default ours, or the hub's")
    parser.add_argument("--per-class", type=int, default=50, help="training images of each class")
    args = parser.parse_args()

    model, px = load_backbone(args.backbone, args.weights)
    train = extract(model, px, args.cifar / "train", args.per_class)
    test = extract(model, px, args.cifar / "test", None)
    held = torch.arange(len(train[1])) % 5 == 0
    fit, tune = [tuple(t[chosen] for t in train) for chosen in (~held, held)]
    strength = max(STRENGTHS, key=lambda s: ridge(fit, tune, s))
    result = {
        "backbone": args.backbone,
        "train_images": len(train[1]),
        "test_images": len(test[1]),
        "nearest_mean_%": round(100 * nearest_mean(train, test), 2),
        "ridge_%": round(100 * ridge(train, test, strength), 2),
        "ridge_strength": strength,
    }
    if file := args.weights or (COMPACT if args.backbone == "compact" else None):
        result["weights_sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
