"""Features at several depths: what is read, in which order, under which norm."""

import pytest
import torch
from torch.nn import functional as F

from conftest import small_dataset, small_trainer
from dafuse.backbones.depths import DEPTHS, Part, parts_of
from dafuse.methods.starts import start_adapter


def test_the_parts_of_each_kind_are_as_told() -> None:
    assert parts_of("last", 12) == [Part(11, "cls")]
    assert parts_of("top", 12) == [
        Part(9, "cls"),
        Part(10, "cls"),
        Part(11, "cls"),
        Part(11, "mean"),
    ]
    assert len(parts_of("all", 12)) == 13
    moments = parts_of("moments", 12)
    assert len(moments) == 27
    assert moments[:3] == [Part(3, "cls"), Part(3, "mean"), Part(3, "std")]
    assert parts_of("moments", 1) == [Part(0, "cls"), Part(0, "mean"), Part(0, "std")]


@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize("depths", DEPTHS)
def test_features_are_those_of_tokens_seen_on_the_way(depths: str, adapted: bool) -> None:
    trainer = small_trainer(small_dataset([2, 2]))
    vit, images = trainer.vit, torch.randn(3, 3, 32, 32)
    adapter = start_adapter(trainer, 0, 4) if adapted else None
    if adapter is not None:
        torch.nn.init.normal_(adapter.up.weight, std=0.5)
    seen: list[torch.Tensor] = []
    with torch.no_grad():
        last = vit.encode(images, adapter, after_blocks=seen)
        found = vit(images, adapter, depths)
    assert found.shape == (3, vit.width_at(depths))
    for part, values in zip(parts_of(depths, vit.depth), found.split(vit.width, 1), strict=True):
        inner = part.block < vit.depth - 1
        tokens = F.layer_norm(seen[part.block], (vit.width,)) if inner else last
        patches = tokens[:, vit.timm.num_prefix_tokens :]
        expected = {
            "cls": tokens[:, 0],
            "mean": patches.mean(1),
            "std": (patches - patches.mean(1, keepdim=True)).square().mean(1).sqrt(),
        }[part.what]
        assert torch.allclose(values, expected, atol=1e-4)


def test_an_image_has_the_same_features_in_any_batch() -> None:
    trainer = small_trainer(small_dataset([2, 2]))
    images = torch.randn(5, 3, 32, 32)
    with torch.no_grad():
        together = trainer.encode(images, None, depths="moments")
        alone = torch.cat([trainer.encode(image[None], None, depths="moments") for image in images])
    assert torch.allclose(together, alone, atol=1e-5)
