"""The frozen ViT against timm's own forward, and each attach point against it written out."""

import math

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dafuse.backbones.adapter import Adapter, AdapterForEach
from dafuse.backbones.attach import Attachment
from dafuse.backbones.vit import ViT
from dafuse.errors import DafuseError
from helpers.small_networks import PREPROCESSING, first_tokens, small_vit

SMALL = {"img_size": 32, "patch_size": 8, "depth": 3, "num_classes": 0}


def build(name: str = "vit_tiny_patch16_224", **arguments: object) -> nn.Module:
    """A timm model with random weights of which none is at a value that hides a mistake."""
    torch.manual_seed(0)
    model = timm.create_model(name, **(SMALL | arguments))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape))
    return model.eval()


def some_images(count: int = 4, seed: int = 1) -> Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def assert_equal_features(ours: Tensor, expected: Tensor) -> None:
    """Compare features, but for the order in which numbers are added up."""
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


def full_adapter(vit: ViT, rank: int = 5, dropout: float = 0.1) -> Adapter:
    """All four tensors far from zero."""
    generator = torch.Generator().manual_seed(2)
    adapter = Adapter(vit.depth, vit.width, rank, dropout=dropout, generator=generator)
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return adapter


# ---- nothing attached

VARIANTS = {
    "plain": {},
    "layer scale": {"init_values": 0.3},
    "register tokens": {"reg_tokens": 4},
    "registers, no embedding for prefixes": {"reg_tokens": 4, "no_embed_class": True},
    "norm before the blocks, as in CLIP": {"pre_norm": True},
    "normed queries and keys": {"qk_norm": True},
    "no bias of queries, keys, values": {"qkv_bias": False},
    "DINOv2-like": {"init_values": 1e-5, "reg_tokens": 4, "no_embed_class": True},
    "wider MLP, other heads": {"mlp_ratio": 2.5, "num_heads": 6},
}


@pytest.mark.parametrize("arguments", VARIANTS.values(), ids=VARIANTS)
def test_features_are_timms(arguments: dict) -> None:
    model = build(**arguments)
    vit, images = ViT(model, PREPROCESSING, "x"), some_images()
    with torch.no_grad():
        expected = model.forward_features(images)
        assert_equal_features(vit.encode(images), expected)
        assert_equal_features(vit(images), expected[:, 0])
        assert_equal_features(vit(images), model(images))  # the CLS token is what timm pools
        assert torch.equal(vit(images, Attachment()), vit(images))
    assert expected.shape == (4, vit.tokens, vit.width)
    assert vit.depth == 3
    assert expected.std() > 0.1  # of something


@pytest.mark.parametrize("name", ["deit_tiny_patch16_224", "vit_small_patch14_dinov2"])
def test_other_plain_architectures(name: str) -> None:
    model = build(name)
    vit, images = ViT(model, PREPROCESSING, name), some_images(2)
    with torch.no_grad():
        assert_equal_features(vit.encode(images), model.forward_features(images))


def test_the_cls_token_alone_is_the_same_without_the_others() -> None:
    """The last block computes it alone, also with an adapter and with a prefix in that block."""
    vit, images = small_vit(), some_images()
    keys, values = torch.randn(2, 1, 5, vit.width, generator=torch.Generator().manual_seed(1))
    for attached in (None, full_adapter(vit).eval(), Prefix({2: (keys, values)})):
        with torch.no_grad():
            alone = vit.encode(images, attached, cls_alone=True)
            assert alone.shape == (4, 1, vit.width)
            assert_equal_features(alone, vit.encode(images, attached)[:, :1])


def test_weights_cast_once_give_what_casting_each_time_gives() -> None:
    vit, images = small_vit(), some_images()
    adapter = full_adapter(vit).eval()
    copy = vit.cast_once(torch.bfloat16)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(copy(images, adapter), vit(images, adapter))
    assert {p.dtype for p in vit.parameters()} == {torch.float32}
    assert copy.timm.blocks[0].mlp.fc1.weight.dtype == torch.bfloat16
    assert copy.timm.norm.weight.dtype == torch.float32


def test_it_is_frozen_and_stays_in_evaluation_mode() -> None:
    model = build(proj_drop_rate=0.5, attn_drop_rate=0.5, pos_drop_rate=0.5, drop_path_rate=0.5)
    vit = ViT(model.train(), PREPROCESSING, "x")
    parent = nn.ModuleList([vit]).train()
    assert parent.training
    assert not any(module.training for module in vit.modules())
    assert not any(parameter.requires_grad for parameter in vit.parameters())
    images = some_images()
    assert torch.equal(vit(images), vit(images))
    assert not vit(images).requires_grad


def test_an_image_does_not_depend_on_its_batch() -> None:
    vit, images = small_vit(), some_images(5)
    adapter = full_adapter(vit).eval()
    with torch.no_grad():
        together = vit(images, adapter)
        alone = torch.cat([vit(image[None], adapter) for image in images])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


# ---- the adapter


@pytest.mark.parametrize("training", [True, False])
def test_a_new_adapter_is_an_exact_no_op(training: bool) -> None:
    vit, images = small_vit(), some_images()
    adapter = Adapter(vit.depth, vit.width).train(training)
    assert torch.equal(vit.encode(images, adapter), vit.encode(images))


def test_a_new_adapter_is_kaiming_uniform_below_and_zero_above() -> None:
    adapter = Adapter(12, 768, 16, generator=torch.Generator().manual_seed(0))
    tensors = adapter.tensors()
    for name in ("down.bias", "up.weight", "up.bias"):
        assert not tensors[name].any()
    down, bound = tensors["down.weight"], 1 / math.sqrt(768)
    assert down.abs().max() <= bound
    assert down.abs().max() > 0.999 * bound
    assert down.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.01)
    assert down.mean().item() == pytest.approx(0, abs=bound / 100)
    again = Adapter(12, 768, 16, generator=torch.Generator().manual_seed(0))
    assert torch.equal(again.down.weight, adapter.down.weight)


def test_sizes_of_the_papers_adapter() -> None:
    adapter = Adapter(depth=12, width=768, rank=16)
    assert sum(parameter.numel() for parameter in adapter.parameters()) == 304_320
    shapes = {name: tuple(tensor.shape) for name, tensor in adapter.tensors().items()}
    assert shapes == {
        "down.weight": (12, 16, 768),
        "down.bias": (12, 16),
        "up.weight": (12, 768, 16),
        "up.bias": (12, 768),
    }
    assert sum(p.numel() for p in Adapter(12, 768, 64).parameters()) == 1_189_632


def by_hand(vit: ViT, images: Tensor, adapter: Adapter) -> Tensor:
    """h = x + Attn(LN1(x)); a = ReLU(Wd·h + bd); y = h + MLP(LN2(h)) + s·(Wu·a + bu)."""
    model, t = vit.timm, adapter.tensors()
    x = first_tokens(model, images)
    for layer, block in enumerate(model.blocks):
        h = x + block.ls1(block.attn(block.norm1(x)))
        a = torch.relu(h @ t["down.weight"][layer].T + t["down.bias"][layer])
        added = a @ t["up.weight"][layer].T + t["up.bias"][layer]
        x = h + block.ls2(block.mlp(block.norm2(h))) + 0.1 * added
    return model.norm(x)


@pytest.mark.parametrize("arguments", [{}, {"init_values": 0.3, "reg_tokens": 2}])
def test_adapter_is_the_formula_written_out(arguments: dict) -> None:
    vit, images = ViT(build(**arguments), PREPROCESSING, "x"), some_images()
    adapter = full_adapter(vit).eval()
    with torch.no_grad():
        ours, expected = vit.encode(images, adapter), by_hand(vit, images, adapter)
        bare = vit.encode(images)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)
    assert (ours - bare).abs().max() > 0.1


def test_only_the_adapter_learns() -> None:
    vit, adapter = small_vit(), Adapter(3, 24, 4)
    vit(some_images(), adapter.train()).square().sum().backward()
    assert all(parameter.grad is None for parameter in vit.parameters())
    assert adapter.up.weight.grad is not None
    assert all(adapter.up.weight.grad[layer].any() for layer in range(3))
    assert not adapter.down.weight.grad.any()  # behind a zero: nothing at the first step


def test_dropout_only_in_training() -> None:
    vit, images = small_vit(), some_images()
    adapter = full_adapter(vit, dropout=0.5)
    with torch.no_grad():
        adapter.train()
        torch.manual_seed(0)
        dropped = vit(images, adapter)
        assert not torch.equal(dropped, vit(images, adapter))
        torch.manual_seed(0)
        assert torch.equal(dropped, vit(images, adapter))
        adapter.eval()
        assert torch.equal(vit(images, adapter), vit(images, adapter))
        never = full_adapter(vit, dropout=0.0).train()
        assert torch.equal(vit(images, never), vit(images, adapter))


def test_dropout_is_after_the_relu_and_keeps_the_mean() -> None:
    adapter = full_adapter(small_vit(), dropout=0.1).train()
    h = torch.randn(1, 1, 24, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    mean = adapter.branch(0, h.expand(20_000, 1, 24)).mean((0, 1))
    torch.testing.assert_close(mean, adapter.eval().branch(0, h)[0, 0], rtol=0.02, atol=2e-3)


def test_tensors_are_copies_and_set_takes_them() -> None:
    one, other = Adapter(3, 24, 4), full_adapter(small_vit(), rank=4)
    values = other.tensors()
    parameter = one.down.weight
    assert one.set(values) is one
    assert one.down.weight is parameter  # an optimiser may hold it
    values["up.bias"].zero_()
    assert other.up.bias.any()
    assert one.up.bias.any()
    assert all(not value.requires_grad for value in values.values())
    with torch.no_grad():
        other.up.bias.zero_()
    assert one.up.bias.any()


def test_an_adapter_for_each_image_gives_the_features_of_the_adapter() -> None:
    vit, images = small_vit(), some_images()
    adapter = full_adapter(vit).eval()
    copies = AdapterForEach(adapter.train())  # has no dropout, whatever the mode
    for count in (4, 2):  # begun again for another number
        copies.begin(count)
        ours = vit(images[:count], copies)
        with torch.no_grad():
            expected = vit(images[:count], adapter.eval())
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)
        shapes = {name: tensor.shape for name, tensor in copies.own.items()}
        assert shapes == {name: (count, *p.shape) for name, p in adapter.named_parameters()}


# ---- attention prefix and extra tokens


class Prefix(Attachment):
    def __init__(self, pairs: dict[int, tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.pairs = pairs

    def prefix(self, layer: int, prompts: Tensor | None = None) -> tuple[Tensor, Tensor] | None:
        return self.pairs.get(layer)


def attention_by_hand(attn: nn.Module, x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Image by image, head by head, query by query."""
    width, heads = x.shape[2], attn.num_heads
    size = width // heads
    out = torch.zeros_like(x)
    for b in range(len(x)):
        qkv = x[b] @ attn.qkv.weight.T + attn.qkv.bias
        q = qkv[:, :width]
        k = torch.cat([keys[b if len(keys) > 1 else 0], qkv[:, width : 2 * width]])
        v = torch.cat([values[b if len(values) > 1 else 0], qkv[:, 2 * width :]])
        for head in range(heads):
            part = slice(head * size, (head + 1) * size)
            for n in range(len(q)):
                query = attn.q_norm(q[n, part])
                scores = torch.stack([query @ attn.k_norm(key[part]) for key in k])
                weights = (scores / math.sqrt(size)).exp()
                out[b, n, part] = (weights / weights.sum()) @ v[:, part]
    return out @ attn.proj.weight.T + attn.proj.bias


@pytest.mark.parametrize("batch", [1, 2], ids=["shared", "for each image"])
@pytest.mark.parametrize("qk_norm", [False, True])
def test_prefix_is_brute_force_attention(batch: int, qk_norm: bool) -> None:
    model = build(embed_dim=24, num_heads=3, qk_norm=qk_norm)
    vit, images = ViT(model, PREPROCESSING, "x"), some_images(2)
    generator = torch.Generator().manual_seed(3)
    pairs = {
        layer: tuple(torch.randn(batch, 5, 24, generator=generator) for _ in range(2))
        for layer in (0, 2)
    }
    with torch.no_grad():
        ours = vit.encode(images, Prefix(pairs))  # type: ignore[arg-type]
        x = first_tokens(model, images)
        for layer, block in enumerate(model.blocks):
            normed = block.norm1(x)
            if layer in pairs:
                x = x + attention_by_hand(block.attn, normed, *pairs[layer])
            else:
                x = x + block.attn(normed)
            x = x + block.mlp(block.norm2(x))
        expected = model.norm(x)
        bare = vit.encode(images)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)
    assert (ours - bare).abs().max() > 0.05


def test_an_empty_prefix_changes_nothing() -> None:
    vit, images = small_vit(), some_images()
    nothing = torch.zeros(1, 0, vit.width)
    with torch.no_grad():
        prefixed = vit.encode(images, Prefix(dict.fromkeys(range(3), (nothing, nothing))))
        torch.testing.assert_close(prefixed, vit.encode(images), rtol=1e-5, atol=1e-5)


class Extra(Attachment):
    def __init__(self, extra_1PD: Tensor) -> None:
        super().__init__()
        self.extra_1PD = nn.Parameter(extra_1PD)

    def tokens(self, x_BND: Tensor, prompts: Tensor | None = None) -> Tensor:
        extra = self.extra_1PD.expand(len(x_BND), -1, -1)
        return torch.cat([x_BND[:, :1], extra, x_BND[:, 1:]], dim=1)


def test_extra_tokens_go_through_all_blocks() -> None:
    vit, images = small_vit(), some_images()
    attached = Extra(torch.randn(1, 4, vit.width, generator=torch.Generator().manual_seed(4)))
    model = vit.timm
    ours = vit.encode(images, attached)
    assert ours.shape == (4, vit.tokens + 4, vit.width)
    with torch.no_grad():
        x = attached.tokens(first_tokens(model, images))
        expected = model.norm(model.blocks(x))
        assert_equal_features(ours, expected)
        assert_equal_features(vit(images, attached), expected[:, 0])
        assert not torch.allclose(expected[:, 0], vit(images), atol=0.01)
    ours[:, 0].sum().backward()
    assert attached.extra_1PD.grad is not None
    assert attached.extra_1PD.grad.abs().sum(2).all()  # each token is attended to


def test_branch_is_asked_once_a_layer_with_the_stream_before_the_second_norm() -> None:
    vit, images = small_vit(), some_images()
    seen: list[tuple[int, Tensor]] = []

    class Watch(Attachment):
        def branch(self, layer: int, h_BND: Tensor) -> None:
            seen.append((layer, h_BND))

    features = vit.encode(images, Watch())
    assert torch.equal(features, vit.encode(images))
    assert [layer for layer, _ in seen] == [0, 1, 2]
    model = vit.timm
    x = first_tokens(model, images)
    for (_, h), block in zip(seen, model.blocks, strict=True):
        torch.testing.assert_close(h, x + block.attn(block.norm1(x)))
        x = block(x)


# ---- what is refused


@pytest.mark.parametrize(
    ("name", "arguments", "why"),
    [
        ("swin_tiny_patch4_window7_224", {}, "SwinTransformer, not timm's VisionTransformer"),
        ("resnet18", {}, "ResNet, not timm's VisionTransformer"),
        ("eva02_tiny_patch14_224", {}, "Eva, not timm's VisionTransformer"),
        (
            "vit_tiny_patch16_224",
            SMALL | {"global_pool": "avg", "class_token": True},
            "pooled over patches",
        ),
        (
            "vit_tiny_patch16_224",
            SMALL | {"global_pool": "avg", "fc_norm": True},
            "pooled over patches",
        ),
        ("vit_tiny_patch16_224", SMALL | {"global_pool": "map"}, "pooled over patches"),
        (
            "vit_tiny_patch16_224",
            SMALL | {"global_pool": "avg", "class_token": False, "fc_norm": False},
            "no CLS token",
        ),
        ("vit_small_patch16_18x2_224", {"img_size": 32, "depth": 2}, "ParallelThingsBlock"),
    ],
)
def test_other_models_are_refused_by_name(name: str, arguments: dict, why: str) -> None:
    model = timm.create_model(name, pretrained=False, **({"num_classes": 0} | arguments))
    with pytest.raises(DafuseError, match=f"backbone some.tag is not a plain ViT .*{why}"):
        ViT(model, PREPROCESSING, "some.tag")


def test_without_a_tag_the_model_is_named_by_its_type() -> None:
    with pytest.raises(DafuseError, match="backbone ResNet is not a plain ViT"):
        ViT(timm.create_model("resnet18", num_classes=0), PREPROCESSING)


def test_gated_attention_is_refused() -> None:
    model = build()
    for block in model.blocks:
        block.attn.gate = nn.Linear(192, 192)
    with pytest.raises(DafuseError, match="its attention is gated"):
        ViT(model, PREPROCESSING, "x")


def test_features_can_be_used_for_a_loss() -> None:
    """The shape and type that heads expect."""
    vit = small_vit()
    features = vit(some_images(6))
    assert features.shape == (6, 24)
    assert features.dtype == torch.float32
    assert F.normalize(features).isfinite().all()
