"""The compiled path computes what the plain path computes."""

import shutil

import pytest
import torch

from conftest import small_dataset, small_stream, small_trainer
from dafuse.methods.daf import DAF


@pytest.mark.skipif(
    not (shutil.which("c++") or shutil.which("g++")), reason="torch.compile needs a C++ compiler"
)
def test_compiled_and_plain_learn_the_same() -> None:
    """Training, Fisher, statistics and predictions, with batches that must be filled up.

    Without dropout, whose masks are drawn in another order by compiled code.
    """
    outcomes = []
    for compiled in (False, True):
        dataset = small_dataset([7] * 4)
        trainer = small_trainer(dataset, compiled=compiled)
        method = DAF(
            trainer=trainer, epochs=2, batch_size=8, adapter_rank=4, adapter_dropout=0.0,
            align_epochs=2, align_samples=16, first_task="fuse",
        )  # fmt: skip
        stream = small_stream(dataset, [2, 2])
        diagnoses = [method.learn(task) for task in stream]
        with torch.no_grad():
            ((images, _),) = trainer.test_batches(stream[1].test)
            outcomes.append((method, trainer, diagnoses, method.logits(images[:3])))
    (plain, eager, before, scores), (fast, inductor, after, same_scores) = outcomes
    assert inductor.epoch_losses == pytest.approx(eager.epoch_losses, abs=1e-5)
    for key, tensor in plain.state().items():
        assert torch.allclose(tensor, fast.state()[key], atol=1e-3), key
    for a, b in zip(before, after, strict=True):
        assert a["bound"] == pytest.approx(b["bound"], rel=1e-3)
    assert torch.allclose(scores, same_scores, atol=1e-2)
