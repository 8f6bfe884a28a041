"""Features at several depths: what is read, in which order, under which norm."""

import pytest
import torch
from torch.nn import functional as F

from dafuse.backbones.depths import (
    DEPTHS,
    Depths,
    FeaturePart,
    Level,
    levels_of_tokens,
    parts_of,
    place_of,
    width_of,
)
from dafuse.methods.training import init_adapter
from helpers.small_datasets import small_dataset
from helpers.small_runs import small_trainer

# three stages, of which the last ends in a vector of another width than its positions
STAGES = [Level("mean", 8, 8), Level("mean", 16, 16), Level("pooled", 40, 32)]


def test_the_parts_of_each_kind_are_as_told() -> None:
    twelve = levels_of_tokens(12, 192)
    assert parts_of("last", twelve) == [FeaturePart(11, "cls", 192)]
    assert parts_of("top", twelve) == [
        FeaturePart(9, "cls", 192),
        FeaturePart(10, "cls", 192),
        FeaturePart(11, "cls", 192),
        FeaturePart(11, "mean", 192),
    ]
    assert len(parts_of("all", twelve)) == 13
    moments = parts_of("moments", twelve)
    assert len(moments) == 27
    assert moments[:3] == [
        FeaturePart(3, "cls", 192),
        FeaturePart(3, "mean", 192),
        FeaturePart(3, "std", 192),
    ]
    alone = parts_of("moments", levels_of_tokens(1, 4))
    assert alone == [FeaturePart(0, "cls", 4), FeaturePart(0, "mean", 4), FeaturePart(0, "std", 4)]


def test_levels_may_have_unequal_widths() -> None:
    assert parts_of("last", STAGES) == [FeaturePart(2, "pooled", 40)]
    assert width_of(parts_of("last", STAGES)) == 40
    for depths in ("top", "all"):
        assert parts_of(depths, STAGES) == [
            FeaturePart(0, "mean", 8),
            FeaturePart(1, "mean", 16),
            FeaturePart(2, "pooled", 40),
            FeaturePart(2, "mean", 32),
        ]
    moments = parts_of("moments", STAGES)
    assert width_of(moments) == 8 + 8 + 16 + 16 + 40 + 32 + 32


def test_a_mean_that_stands_for_the_whole_is_read_once() -> None:
    assert parts_of("moments", STAGES)[:4] == [
        FeaturePart(0, "mean", 8),
        FeaturePart(0, "std", 8),
        FeaturePart(1, "mean", 16),
        FeaturePart(1, "std", 16),
    ]
    means = [Level("mean", 8, 8), Level("mean", 16, 16)]
    assert parts_of("last", means) == [FeaturePart(1, "mean", 16)]
    assert parts_of("all", means) == [FeaturePart(0, "mean", 8), FeaturePart(1, "mean", 16)]
    for depths in DEPTHS:
        parts = parts_of(depths, means)
        assert len(set(parts)) == len(parts)


@pytest.mark.parametrize("depths", DEPTHS)
def test_parts_lie_side_by_side(depths: Depths) -> None:
    parts = parts_of(depths, STAGES)
    columns = list(range(width_of(parts)))
    places = [columns[place_of(part, parts)] for part in parts]
    assert [len(place) for place in places] == [part.width for part in parts]
    assert [column for place in places for column in place] == columns


@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize("depths", DEPTHS)
def test_features_are_those_of_tokens_seen_on_the_way(depths: Depths, adapted: bool) -> None:
    trainer = small_trainer(small_dataset([2, 2]))
    vit, images = trainer.network, torch.randn(3, 3, 32, 32)
    adapter = init_adapter(trainer, 0, 4) if adapted else None
    if adapter is not None:
        torch.nn.init.normal_(adapter.up.weight, std=0.5)
    seen: list[torch.Tensor] = []
    with torch.no_grad():
        last = vit.encode(images, adapter, after_blocks=seen)
        found = vit(images, adapter, depths)
    parts = vit.parts(depths)
    assert parts == parts_of(depths, levels_of_tokens(vit.depth, vit.width))
    assert found.shape == (3, width_of(parts)) == (3, vit.width_at(depths))
    for part in parts:
        inner = part.level < vit.depth - 1
        tokens = F.layer_norm(seen[part.level], (vit.width,)) if inner else last
        patches = tokens[:, vit.timm.num_prefix_tokens :]
        expected = {
            "cls": tokens[:, 0],
            "mean": patches.mean(1),
            "std": (patches - patches.mean(1, keepdim=True)).square().mean(1).sqrt(),
        }[part.what]
        assert torch.allclose(found[:, place_of(part, parts)], expected, atol=1e-4)


def test_an_image_has_the_same_features_in_any_batch() -> None:
    trainer = small_trainer(small_dataset([2, 2]))
    images = torch.randn(5, 3, 32, 32)
    with torch.no_grad():
        together = trainer.encode(images, None, depths="moments")
        alone = torch.cat([trainer.encode(image[None], None, depths="moments") for image in images])
    assert torch.allclose(together, alone, atol=1e-5)
