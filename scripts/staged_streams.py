"""DAF beside the blocks of a ConvNeXt and of a Swin: streams for a CPU.

    python scripts/staged_streams.py --images cifar100 --network ConvNeXt

`--images` is a tree {train,test}/CLASS/IMAGE. No pre-trained weights of these families come with
dafuse, so a small network is first trained from scratch on the first half of the classes. Frozen,
it then learns the other half, five classes at a time, from 100 images a class. A line for each
method: accuracy over all classes of the stream after its last task, on all test images.
"""

import argparse
import json
import time
from dataclasses import replace
from typing import Any

import numpy as np
import timm
import torch
from torch import nn
from torch.nn import functional as F

from dafuse.backbones.load import network_of
from dafuse.data.batches import Loader
from dafuse.data.dataset import Augmentation, Dataset, ImageSet
from dafuse.data.preprocessing import Preprocessing
from dafuse.data.registry import open_dataset
from dafuse.data.stream import Stream
from dafuse.engine.devices import launch
from dafuse.engine.trainer import Trainer
from dafuse.methods.registry import METHODS
from dafuse.seeds import torch_generator

SIZE, TASK, PER_CLASS = 32, 5, 100  # pixels, classes of a task, images of a class in the stream
GENTLE = Augmentation(scale=(0.5, 1.0))
LOOKS = Preprocessing(SIZE, (0.5,) * 3, (0.5,) * 3, resize=SIZE)  # of small images, all is seen
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "ConvNeXt": (
        "convnext_atto",
        {"depths": (2, 2, 4, 2), "dims": (24, 48, 96, 192), "patch_size": 2, "ls_init_value": 1.0},
    ),
    "Swin": (
        "swin_tiny_patch4_window7_224",
        {
            "img_size": SIZE,
            "patch_size": 2,
            "embed_dim": 24,
            "depths": (2, 2, 2, 2),
            "num_heads": (1, 2, 4, 8),
            "window_size": 4,
        },
    ),
}
METHODS_TRIED: dict[str, tuple[str, dict[str, Any]]] = {
    "simplecil (nothing is trained)": ("simplecil", {}),
    "lift (nothing is trained)": ("lift", {}),
    "daf": ("daf", {}),
    "daf, the mean of the adapters": ("daf", {"rule": "mean"}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--images", required=True, help="tree of train/ and test/")
    parser.add_argument("--network", choices=NETWORKS, required=True)
    parser.add_argument("--epochs", type=int, default=12, help="of the pre-training")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    dataset = replace(open_dataset(options.images), augmentation=GENTLE)
    half, count = len(dataset.classes) // 2, len(dataset.classes)
    known, later = of_classes(dataset, 0, half), of_classes(dataset, half, count, PER_CLASS)
    name, arguments = NETWORKS[options.network]
    torch.manual_seed(options.seed)
    model = timm.create_model(name, num_classes=half, **arguments)
    found = pretrain(model, known, options)
    print(json.dumps({"network": options.network} | found), flush=True)
    model.reset_classifier(0)
    for title, (method, settings) in METHODS_TRIED.items():
        start = time.perf_counter()
        accuracy = learn(model, later, method, settings, options.seed)
        seconds = round(time.perf_counter() - start)
        print(json.dumps({"method": title, "accuracy": accuracy, "seconds": seconds}), flush=True)


def of_classes(dataset: Dataset, start: int, stop: int, most: int | None = None) -> Dataset:
    """The images of these classes alone; of each, so many to learn from."""

    def part(images: ImageSet, most: int | None) -> ImageSet:
        rows = [np.flatnonzero(images.labels == label)[:most] for label in range(start, stop)]
        chosen = images.take(np.concatenate(rows))
        return ImageSet(chosen.items, chosen.labels - start, chosen.index)

    train, test = part(dataset.train, most), part(dataset.test, None)
    return replace(dataset, classes=dataset.classes[start:stop], train=train, test=test)


def pretrain(
    model: nn.Module, dataset: Dataset, options: argparse.Namespace
) -> dict[str, float | int]:
    """Train the whole network and its classifier; accuracy on test images of the same classes."""
    fabric = launch("cpu", "fp32", deterministic=False)
    loader = Loader(dataset, LOOKS, fabric.device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, 4e-3, epochs=options.epochs, steps_per_epoch=-(-len(loader.dataset.train) // 50)
    )
    model.train()
    for epoch in range(options.epochs):
        generator = torch_generator(options.seed, "pretraining", epoch)
        for images, labels in loader.train_batches(loader.dataset.train, 50, generator):
            optimiser.zero_grad()
            F.cross_entropy(model(images), labels, label_smoothing=0.1).backward()
            optimiser.step()
            schedule.step()
    model.eval()
    with torch.no_grad():
        right = [
            model(images).argmax(1) == labels
            for images, labels in loader.test_batches(loader.dataset.test, 200)
        ]
    accuracy = round(100 * torch.cat(right).double().mean().item(), 1)
    parameters = sum(p.numel() for p in model.parameters())
    return {"parameters": parameters, "pretrained_accuracy": accuracy}


def learn(
    model: nn.Module, dataset: Dataset, method: str, settings: dict[str, Any], seed: int
) -> float:
    """Learn the stream, task by task; accuracy over all classes after the last one."""
    fabric = launch("cpu", "fp32", deterministic=False)
    network = network_of(model, LOOKS, "pre-trained on characters")
    trainer = Trainer(network, Loader(dataset, LOOKS, fabric.device), fabric, seed)
    learner = METHODS[method](trainer=trainer, **settings)
    count = len(dataset.classes)
    stream = Stream(trainer.loader.dataset, range(count), [TASK] * (count // TASK))
    for task in stream:
        learner.learn(task)
    right = []
    with torch.no_grad():
        for test in stream.tests_until(stream[len(stream) - 1]):
            for images, labels in trainer.batches(test):
                right.append(learner.logits(images).argmax(1) == labels)
    return round(100 * torch.cat(right).double().mean().item(), 1)


if __name__ == "__main__":
    main()
