"""Several adapters at once give what each gives alone."""

import torch

from dafuse.backbones.adapter import Adapter, AdapterBank
from dafuse.heads.logits import most_certain
from helpers.small_datasets import small_dataset
from helpers.small_networks import small_vit
from helpers.small_runs import small_trainer


def random_adapter(seed: int) -> Adapter:
    vit, generator = small_vit(), torch.Generator().manual_seed(seed)
    adapter = Adapter(vit.depth, vit.width, rank=4, generator=generator).eval()
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return adapter


def test_features_under_each_adapter() -> None:
    vit, adapters = small_vit(), [random_adapter(seed) for seed in range(3)]
    images = torch.randn(5, 3, 32, 32)
    bank = AdapterBank()
    for adapter in adapters:
        bank.append(adapter.tensors())
    with torch.no_grad():
        together_BKD = vit(images, bank)
        assert together_BKD.shape == (5, 3, vit.width)
        for position, adapter in enumerate(adapters):
            assert torch.allclose(together_BKD[:, position], vit(images, adapter), atol=1e-5)
    assert torch.equal(bank[1]["up.weight"], adapters[1].tensors()["up.weight"])


def test_one_more_leaves_the_bank_as_it_was() -> None:
    bank = AdapterBank()
    bank.append(random_adapter(0).tensors())
    assert len(bank.with_one_more(random_adapter(1).tensors())) == 2
    assert len(bank) == 1


def test_large_batches_go_in_parts() -> None:
    trainer = small_trainer(small_dataset([3, 3]))
    bank = AdapterBank()
    for seed in range(3):
        bank.append(random_adapter(seed).tensors())
    images = torch.randn(10, 3, 32, 32)
    with torch.no_grad():
        whole = trainer.encode(images, bank)
        trainer.forward.at_once = 6  # two images at a time
        assert torch.allclose(whole, trainer.encode(images, bank), atol=1e-5)


def test_some_of_the_adapters_and_their_mean() -> None:
    bank = AdapterBank(scale=0.3)
    adapters = [random_adapter(seed).tensors() for seed in range(3)]
    for adapter in adapters:
        bank.append(adapter)
    some = bank.take([0, -1])
    assert (len(some), some.scale, len(bank)) == (2, 0.3, 3)
    mean = bank.mean()
    for name in adapters[0]:
        assert torch.equal(some[0][name], adapters[0][name])
        assert torch.equal(some[1][name], adapters[2][name])
        assert torch.allclose(mean[name], sum(a[name] for a in adapters) / 3, atol=1e-6)


def test_the_most_certain_candidate_is_chosen_for_each_image() -> None:
    logits = torch.tensor([[[0.0, 0.1], [9.0, 0.0]], [[0.0, 5.0], [1.0, 0.0]]])  # [B, K, C]
    chosen = torch.stack([logits[0, 1], logits[1, 0]]).softmax(1)
    assert torch.allclose(most_certain(logits), chosen)
