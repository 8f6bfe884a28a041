"""SimpleCIL: what it keeps of a class is a sum that has the direction of its mean."""

import numpy as np
import torch
from torch.nn import functional as F

from dafuse.data.dataset import ImageSet
from dafuse.data.stream import Stream, Task
from dafuse.engine.trainer import Trainer
from dafuse.methods.simplecil import SimpleCIL
from helpers.small_datasets import small_dataset
from helpers.small_runs import small_stream, small_trainer

SIZES = [2, 1]


def made() -> tuple[SimpleCIL, Stream, Trainer]:
    dataset = small_dataset([5, 3, 4])
    trainer = small_trainer(dataset)
    return SimpleCIL(trainer=trainer), small_stream(dataset, SIZES), trainer


def test_rows_have_the_direction_of_the_class_means_and_are_exact() -> None:
    method, stream, trainer = made()
    for task in stream:
        method.learn(task)
        feats, labels = trainer.features(task.train, None)
        for label in labels.unique():
            mean, row = feats[labels == label].double().mean(0), method.weights_CD[label]
            assert torch.allclose(F.normalize(row, dim=0), F.normalize(mean, dim=0), atol=1e-12)
    assert method.state()["classifier/rows"].dtype == torch.float64
    assert method.state().keys() == {"classifier/rows"}


def test_a_later_task_may_have_more_images_of_known_classes() -> None:
    at_once, stream, _ = made()
    for task in stream:
        at_once.learn(task)
    in_two, stream, _ = made()
    images = ImageSet.join([task.train for task in stream])
    for index, rows in enumerate(([0, 5, 8, 6], [1, 2, 9, 3, 7, 11, 4, 10])):
        in_two.learn(Task(index, 0, 3, stream.classes, images.take(np.array(rows)), images))
    assert torch.allclose(in_two.weights_CD, at_once.weights_CD, rtol=1e-5)


def test_a_checkpoint_of_means_in_float32_is_gone_on_with() -> None:
    """Earlier versions wrote such means."""
    method, stream, trainer = made()
    method.learn(stream[0])
    older, its_stream, _ = made()
    means_CD = method.weights_CD / torch.tensor([[5.0], [3.0]])
    older.load_state({"classifier/rows": means_CD.float()})
    method.learn(stream[1])
    older.learn(its_stream[1])
    ((images, _),) = trainer.batches(stream[1].test)
    assert torch.allclose(method.logits(images), older.logits(images), atol=1e-5)
