"""Weights by tag: where they are found, that they are the right ones, and what is said if not."""

import hashlib
import io
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from email.message import Message
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import timm
import torch
from huggingface_hub import constants
from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from dafuse.backbones.any_timm import AnyTimm
from dafuse.backbones.load import build_backbone, find_backbone, load_backbone
from dafuse.backbones.network import Network
from dafuse.backbones.registry import (
    BACKBONES,
    CHOICES,
    COMPACT,
    COMPACT_V1,
    next_better,
    tag_named,
)
from dafuse.backbones.staged import Staged
from dafuse.backbones.vit import ViT
from dafuse.backbones.weights import cached, fetch, locate, preprocessing_of
from dafuse.data.preprocessing import NORMALISATIONS
from dafuse.errors import DafuseError
from dafuse.progress import Progress
from helpers.photographs import photographs
from helpers.places import SHARED

DEIT = "deit_tiny_patch16_224.fb_in1k"
PACKAGED = locate(COMPACT)[0] or Path("nowhere")
REAL_DEIT = SHARED / "weights" / "deit_tiny_patch16_224.safetensors"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def random_deit() -> dict[str, Tensor]:
    """A whole state dict of the right shapes, in half precision, with a head as on the hub."""
    torch.manual_seed(0)
    state = timm.create_model("deit_tiny_patch16_224").state_dict()
    return {name: (t + 0.01 * torch.randn(t.shape)).half() for name, t in state.items()}


@pytest.fixture(scope="module")
def weights(random_deit: dict[str, Tensor], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "mine.safetensors"
    save_file(random_deit, path)
    return path


def test_a_local_file_is_loaded(weights: Path, random_deit: dict[str, Tensor]) -> None:
    vit = load_backbone(DEIT, file=str(weights), sha256=sha256(weights))
    assert (vit.tag, vit.source, vit.sha256) == (DEIT, "file", sha256(weights))
    assert (vit.depth, vit.width, vit.tokens) == (12, 192, 197)
    loaded = vit.timm.state_dict()
    assert set(loaded) == {name for name in random_deit if not name.startswith("head")}
    for name, tensor in loaded.items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, random_deit[name].float()), name
    assert not any(parameter.requires_grad for parameter in vit.parameters())


def test_preprocessing_belongs_to_the_tag_unless_told_otherwise(weights: Path) -> None:
    def preprocessing(normalize: str):
        return load_backbone(DEIT, str(weights), sha256(weights), normalize).preprocessing

    mean, std = NORMALISATIONS["imagenet"]
    ours = preprocessing("weights")
    assert (ours.size, ours.resize) == (224, 256)
    assert (ours.mean, ours.std) == (mean, std)
    assert preprocessing("none").mean == (0, 0, 0)
    assert preprocessing("half").std == (0.5, 0.5, 0.5)
    with pytest.raises(DafuseError, match="one of weights, none, half, imagenet, not 'zero'"):
        preprocessing("zero")


def test_an_unknown_hash_is_refused_and_accepted_once_it_is_given(weights: Path) -> None:
    digest = sha256(weights)
    with pytest.raises(DafuseError, match=digest) as caught:
        load_backbone(DEIT, file=str(weights))
    assert f"not known to be {DEIT}" in str(caught.value)
    assert f"--weights-sha256 {digest}" in str(caught.value)  # what to do, ready to copy
    assert load_backbone(DEIT, str(weights), digest.upper()).sha256 == digest


def test_another_hash_than_expected_is_refused(weights: Path) -> None:
    with pytest.raises(DafuseError, match=f"has SHA-256 {sha256(weights)}, not {'0' * 64}"):
        load_backbone(DEIT, str(weights), "0" * 64)


@pytest.mark.parametrize("kept", [0, 5, 1000, -1000], ids=["empty", "5 bytes", "header", "tail"])
def test_a_truncated_file_is_named(weights: Path, tmp_path: Path, kept: int) -> None:
    short = tmp_path / "short.safetensors"
    short.write_bytes(weights.read_bytes()[:kept])
    with pytest.raises(DafuseError, match=r"short\.safetensors does not hold the weights of deit"):
        load_backbone(DEIT, str(short), sha256(short))


def without(name: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda state: {key: t for key, t in state.items() if key != name}


def with_tensor(name: str, *shape: int) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda state: state | {name: torch.zeros(shape)}


WRONG = {
    "no MLP": without("blocks.3.mlp.fc1.weight"),
    "no positions": without("pos_embed"),
    "no bias": without("norm.bias"),
    "one block more": with_tensor("blocks.12.norm1.weight", 192),
    "wider norm": with_tensor("norm.weight", 384),
    "flat patches": with_tensor("patch_embed.proj.weight", 192, 3),
    "wider patches": with_tensor("patch_embed.proj.weight", 384, 3, 16, 16),
    "patches of films": with_tensor("patch_embed.proj.weight", 192, 3, 1, 8, 8),
    "wider positions": with_tensor("pos_embed", 1, 197, 384),
    "odd positions": with_tensor("pos_embed", 1, 150, 192),  # no square of patches
    "flat positions": with_tensor("pos_embed", 192),
    "another network": lambda state: {"conv1.weight": torch.zeros(3, 3)},
    "nothing": lambda state: {},
    "prefixed": lambda state: {f"model.{name}": tensor for name, tensor in state.items()},
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_wrong_tensors_are_refused(
    random_deit: dict[str, Tensor], tmp_path: Path, change: Callable
) -> None:
    path = tmp_path / "wrong.safetensors"
    save_file(change(random_deit), path)
    with pytest.raises(DafuseError, match=r"wrong\.safetensors does not hold the weights of deit"):
        load_backbone(DEIT, str(path), sha256(path))


def test_position_embeddings_of_another_size_are_resized(
    random_deit: dict[str, Tensor], tmp_path: Path
) -> None:
    path = tmp_path / "large.safetensors"
    save_file(random_deit | {"pos_embed": torch.ones(1, 1 + 24 * 24, 192)}, path)
    vit = load_backbone(DEIT, str(path), sha256(path))
    torch.testing.assert_close(vit.timm.pos_embed.data, torch.ones(1, 197, 192))


def test_only_safetensors_are_read(tmp_path: Path) -> None:
    pickled = tmp_path / "weights.pth"
    torch.save({}, pickled)
    with pytest.raises(DafuseError, match=r"must be a \.safetensors file, not .*weights\.pth"):
        load_backbone(DEIT, str(pickled))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    for missing in (tmp_path / "nowhere.safetensors", tmp_path):  # nor is a folder a file
        with pytest.raises(DafuseError, match=f"{missing} does not exist"):
            load_backbone(DEIT, str(missing))


@pytest.mark.parametrize(
    ("bare", "usual"),
    [
        ("resnet50", "resnet50.a1_in1k"),
        ("vit_base_patch16_224", "vit_base_patch16_224.augreg2_in21k_ft_in1k"),
        ("deit_tiny_patch16_224.another", DEIT),
    ],
)
def test_names_that_are_not_exact_are_refused_with_one_tag_to_take(bare: str, usual: str) -> None:
    with pytest.raises(DafuseError, match="does not name one set of weights") as caught:
        load_backbone(bare)
    architecture = bare.partition(".")[0]
    assert str(caught.value).endswith(f": take --backbone {usual}")
    assert str(caught.value).count(f"{architecture}.") == 1 + bare.count(".")
    assert find_backbone(usual).tag == usual


def test_a_named_choice_stands_for_one_tag() -> None:
    assert list(CHOICES) == ["embedded", "small", "base", "large"]
    for name, tag in CHOICES.items():
        assert tag_named(name) == find_backbone(name).tag == tag
        assert tag_named(tag) == tag
        assert tag in BACKBONES
    assert CHOICES["embedded"] == COMPACT
    vit = build_backbone("small")
    assert (vit.tag, vit.width, vit.depth) == (CHOICES["small"], 384, 12)
    assert (vit.preprocessing.size, vit.preprocessing.resize) == (224, 256)  # not its own 518


def test_each_choice_names_the_better_one() -> None:
    better = {name: next_better(tag) for name, tag in CHOICES.items()}
    assert better == {"embedded": "small", "small": "base", "base": "large", "large": ""}
    assert next_better(COMPACT_V1) == "embedded"
    assert next_better(DEIT) == ""


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("vit_bas_patch16_224.augreg_in21k", "vit_base_patch16_224.augreg_in21k"),
        ("diet_tiny_patch16_224.fb_in1k", DEIT),
        ("dafuse_compact_patch16_128", COMPACT),
        ("dafuse_compact_patch8_64", COMPACT_V1),
        ("Embeded", "embedded"),
    ],
)
def test_unknown_names_bring_suggestions(wrong: str, right: str) -> None:
    with pytest.raises(DafuseError, match=f"no backbone is called {wrong}") as caught:
        load_backbone(wrong)
    suggested = str(caught.value).rpartition("did you mean ")[2].removesuffix("?").split(", ")
    assert suggested[0] == right
    assert len(set(suggested)) == len(suggested)


def test_a_name_like_nothing_brings_none() -> None:
    with pytest.raises(DafuseError, match=r"^no backbone is called zzz$"):
        load_backbone("zzz")


@pytest.mark.parametrize(
    ("tag", "kind"),
    [
        ("vit_tiny_patch16_224.augreg_in21k", ViT),
        ("swin_tiny_patch4_window7_224.ms_in1k", Staged),
        ("resnet18.a1_in1k", AnyTimm),
    ],
)
def test_a_network_is_built_without_its_weights(
    tag: str, kind: type[Network], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = cut_network(monkeypatch)
    network = build_backbone(tag)
    assert type(network) is kind
    assert (network.tag, network.sha256) == (tag, "")
    assert not any(parameter.requires_grad for parameter in network.parameters())
    assert calls == []


def test_a_network_whose_stages_timm_does_not_give_is_refused() -> None:
    with pytest.raises(DafuseError, match="strange is a Sequential, and timm does not give"):
        AnyTimm(nn.Sequential(), build_backbone(COMPACT).preprocessing, "strange")


OTHER_FAMILIES = [
    "convnext_tiny.in12k_ft_in1k",
    "convnext_tiny.in12k_ft_in1k_384",  # squashed
    "densenet121.ra_in1k",
    "dla34.in1k",  # bilinear
    "efficientnet_b0.ra_in1k",
    "mobilevit_xxs.cvnets_in1k",  # no normalisation
    "mixer_b16_224.goog_in21k",
    "resnet50.a1_in1k",
    "swin_tiny_patch4_window7_224.ms_in1k",
    "vit_small_patch16_224.augreg_in21k",
    "vit_small_patch16_lingbot.robbyant",  # bilinear and squashed
    "xcit_nano_12_p16_224.fb_dist_in1k",  # nothing is cropped
]


@pytest.mark.parametrize("tag", OTHER_FAMILIES)
def test_images_look_as_timm_makes_them(tag: str) -> None:
    looks = build_backbone(tag).preprocessing
    config = timm.data.resolve_data_config(pretrained_cfg=timm.get_pretrained_cfg(tag).to_dict())
    theirs = timm.data.create_transform(**config)
    resize, crop, _, normalize = theirs.transforms
    squashes = looks.crop == "squash"
    assert resize.size == ((looks.resize, looks.resize) if squashes else looks.resize)
    assert resize.interpolation.value == looks.interpolation
    assert crop.size == (looks.size, looks.size)
    assert normalize.mean.tolist() == pytest.approx(looks.mean)
    assert normalize.std.tolist() == pytest.approx(looks.std)

    picture = Image.fromarray(photographs()[0])
    square_3SS = torch.from_numpy(looks.centre_square(np.asarray(picture)))
    std_3, mean_3 = (one[:, None, None] for one in (normalize.std, normalize.mean))
    expected_3SS = 255 * (theirs(picture) * std_3 + mean_3)
    assert (square_3SS - expected_3SS).abs().max() < 3  # timm rounds to whole grey values
    assert (square_3SS - expected_3SS).abs().mean() < 0.4


def test_timms_looks_are_overridden_for_224_pixels_as_the_papers_of_the_field_have_it() -> None:
    papers = [DEIT, *(tag for tag in BACKBONES if tag.startswith("vit_base_patch16_224."))]
    assert len(papers) == 3
    for tag in papers:
        assert build_backbone(tag).preprocessing.resize == 256
        assert timm.get_pretrained_cfg(tag).crop_pct == 0.9  # 248 pixels


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"input_size": (3, 224, 112)}, "224 x 112 pixels, bicubic, crop center"),
        ({"interpolation": "lanczos"}, "224 x 224 pixels, lanczos, crop center"),
        ({"crop_mode": "border"}, "224 x 224 pixels, bicubic, crop border"),
    ],
)
def test_images_that_cannot_be_made_so_are_refused(change: dict[str, object], said: str) -> None:
    config = {**timm.get_pretrained_cfg(DEIT).to_dict(), **change}
    with pytest.raises(DafuseError, match=f"{DEIT} takes images of {said}, which dafuse does not"):
        preprocessing_of(DEIT, config, "weights")


def test_the_papers_backbones_are_registered_by_exact_tag() -> None:
    for tag in ("vit_base_patch16_224.augreg_in21k", "vit_base_patch16_224.augreg_in21k_ft_in1k"):
        assert BACKBONES[tag].architecture == "vit_base_patch16_224"
        assert tag in timm.list_pretrained("vit_base_patch16_224.*")


def test_folder_lookup_by_tag_and_by_architecture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAFUSE_WEIGHTS", str(tmp_path))
    assert locate(DEIT) == (None, "hub")
    by_architecture = tmp_path / "deit_tiny_patch16_224.safetensors"
    by_architecture.touch()
    assert locate(DEIT) == (by_architecture, "folder")
    by_tag = tmp_path / f"{DEIT}.safetensors"
    by_tag.touch()
    assert locate(DEIT) == (by_tag, "folder")  # the exact name comes first
    given = tmp_path / "given.safetensors"
    given.touch()
    assert locate(DEIT, str(given)) == (given, "file")  # and a file given comes before both


def test_a_bare_name_is_not_enough_where_no_hash_tells_which_weights_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAFUSE_WEIGHTS", str(tmp_path))
    (tmp_path / "vit_base_patch16_224.safetensors").touch()
    assert locate("vit_base_patch16_224.augreg_in21k") == (None, "hub")


def test_several_folders_are_searched_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / name for name in ("absent", "first", "second")]
    for folder in folders[1:]:
        folder.mkdir()
        (folder / f"{DEIT}.safetensors").touch()
    monkeypatch.setenv("DAFUSE_WEIGHTS", os.pathsep.join(["", *map(str, folders)]))
    assert locate(DEIT) == (folders[1] / f"{DEIT}.safetensors", "folder")


def test_weights_in_the_folder_are_loaded_and_checked(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = cut_network(monkeypatch)
    (tmp_path / f"{DEIT}.safetensors").write_bytes(weights.read_bytes())
    monkeypatch.setenv("DAFUSE_WEIGHTS", str(tmp_path))
    with pytest.raises(DafuseError, match=f"not known to be {DEIT}"):
        load_backbone(DEIT)
    assert load_backbone(DEIT, sha256=sha256(weights)).source == "folder"
    assert calls == []


def cut_network(monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> list[str]:
    """Every attempt to open a URL fails, and is recorded."""
    calls: list[str] = []

    def urlopen(request: urllib.request.Request, *args: object, **kwargs: object) -> None:
        calls.append(request.full_url)
        raise error or OSError("Network is unreachable")

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    return calls


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    # it has read HF_HOME already, when it was imported
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    return tmp_path / "hf" / "hub"


class Hub:
    """Stands in for hf_hub_download: remembers what it was asked, answers a file or an error."""

    def __init__(self, cached: Path | None = None, answer: Path | Exception | None = None) -> None:
        self.cached, self.answer = cached, answer
        self.asked: list[tuple[str, str, bool]] = []

    def __call__(self, repository: str, name: str, local_files_only: bool = False) -> str:
        self.asked.append((repository, name, local_files_only))
        if local_files_only and self.cached is None:
            raise LocalEntryNotFoundError("not in the cache")
        answer = self.cached if local_files_only else self.answer
        if isinstance(answer, Path):
            return str(answer)
        raise answer or AssertionError("a download was tried")


def http_error(code: int) -> urllib.error.HTTPError:
    return urllib.error.HTTPError("https://hub", code, "said no", Message(), io.BytesIO())


def test_without_a_network_it_says_what_to_do_at_once(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = cut_network(monkeypatch)
    with pytest.raises(DafuseError) as caught:
        load_backbone(DEIT)
    assert calls == ["https://huggingface.co"]  # once: no retries
    message = str(caught.value)
    assert message.startswith(f"the weights {DEIT} are not here and the hub cannot be reached")
    assert f"https://huggingface.co/timm/{DEIT}/resolve/main/model.safetensors" in message
    assert f"name it {DEIT}.safetensors and put it into a folder that $DAFUSE_WEIGHTS" in message
    assert "--weights FILE" in message
    assert "--backbone embedded needs no download" in message
    assert "\n" not in message


def test_without_a_network_nothing_is_downloaded(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub()
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hub)
    cut_network(monkeypatch)
    with pytest.raises(DafuseError, match="cannot be reached"):
        load_backbone(DEIT)
    assert hub.asked == [(f"timm/{DEIT}", "model.safetensors", True)]  # the cache only


@pytest.mark.parametrize(
    ("tag", "repository"),
    [
        ("resnet18.a1_in1k", "timm/resnet18.a1_in1k"),
        ("rdnet_tiny.nv_in1k", "naver-ai/rdnet_tiny.nv_in1k"),
        ("vitamin_small_224.datacomp1b_clip", "jienengchen/ViTamin-S"),
    ],
)
def test_weights_are_fetched_from_where_timm_says(
    tag: str, repository: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub()
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hub)
    cut_network(monkeypatch)
    with pytest.raises(DafuseError, match=f"/{repository}/resolve/main/model.safetensors"):
        fetch(find_backbone(tag), Progress())
    assert hub.asked == [(repository, "model.safetensors", True)]


def test_the_cache_is_enough(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = cut_network(monkeypatch)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", Hub(cached=weights))
    vit = load_backbone(DEIT, sha256=sha256(weights))
    assert vit.source == "hub"
    assert calls == []


def test_a_file_damaged_in_the_cache_is_refused(
    weights: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache names its files by the SHA-256 that the hub gave them, and links to them."""
    blob = empty_cache / "blobs" / sha256(weights)
    cached = empty_cache / "snapshots" / "abc" / "model.safetensors"
    for file in (blob, cached):
        file.parent.mkdir(parents=True)
    blob.write_bytes(weights.read_bytes())
    cached.symlink_to(blob)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", Hub(cached=cached))
    assert load_backbone(DEIT).sha256 == blob.name
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(data)
    with pytest.raises(DafuseError, match=f"is damaged: .*; delete {blob} to have it downloaded"):
        load_backbone(DEIT)


def test_what_the_cache_has_is_told(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deit = BACKBONES[DEIT]
    assert cached(deit) is None
    snapshots = empty_cache / f"models--timm--{DEIT}"
    (snapshots / "refs").mkdir(parents=True)
    (snapshots / "refs" / "main").write_text("abc")
    file = snapshots / "snapshots" / "abc" / "model.safetensors"
    file.parent.mkdir(parents=True)
    file.touch()
    assert cached(deit) == file


def test_a_tag_that_the_hub_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = RepositoryNotFoundError.__new__(RepositoryNotFoundError)  # needs a real response
    hub = Hub(answer=unknown)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hub)
    cut_network(monkeypatch, http_error(401))  # an answer: the hub can be reached
    with pytest.raises(DafuseError, match=f"the hub has no weights timm/{DEIT}; check the tag"):
        load_backbone(DEIT)
    assert [only_cache for _, _, only_cache in hub.asked] == [True, False]


def test_a_download_is_announced_and_what_the_hub_delivers_is_the_tags(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub(answer=weights)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hub)
    monkeypatch.setattr(urllib.request, "urlopen", lambda *args, **kwargs: io.BytesIO())
    said: list[str] = []

    class Heard(Progress):
        def say(self, line: str) -> None:
            said.append(line)

    vit = load_backbone(DEIT, progress=Heard())  # another file than the one whose hash is known
    assert (vit.source, vit.sha256) == ("hub", sha256(weights))
    assert said == [f"downloading {DEIT} from the hub"]
    with pytest.raises(DafuseError, match="has SHA-256"):
        load_backbone(DEIT, sha256="0" * 64)
    assert [only_cache for _, _, only_cache in hub.asked] == [True, False] * 2


def test_a_download_that_breaks_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        huggingface_hub, "hf_hub_download", Hub(answer=ConnectionResetError("reset by peer"))
    )
    cut_network(monkeypatch, http_error(503))  # the hub's page is down; its files may not be
    with pytest.raises(DafuseError, match=r"failed \(reset by peer\): on a machine") as caught:
        load_backbone(DEIT)
    assert "--weights FILE" in str(caught.value)


def test_the_packaged_backbone(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = cut_network(monkeypatch)
    assert PACKAGED.stat().st_size <= 12_000_000
    vit = load_backbone(COMPACT)
    assert vit.source == "package"
    assert vit.sha256 == sha256(PACKAGED)
    assert vit.sha256 in BACKBONES[COMPACT].sha256
    assert (vit.width, vit.depth, vit.tokens) == (192, 12, 65)
    assert (vit.preprocessing.size, vit.preprocessing.resize) == (128, 146)
    assert calls == []
    with torch.no_grad():
        features = vit(torch.randn(3, 3, 128, 128, generator=torch.Generator().manual_seed(0)))
    assert features.isfinite().all()
    assert features.std(0).min() > 0  # images make a difference


def test_version_1_of_the_packaged_backbone_is_still_there() -> None:
    vit = load_backbone(COMPACT_V1)
    assert (vit.source, vit.sha256) == ("package", BACKBONES[COMPACT_V1].sha256[0])
    assert (vit.width, vit.depth, vit.tokens) == (192, 12, 65)
    assert (vit.preprocessing.size, vit.preprocessing.resize) == (64, 73)


@pytest.mark.skipif(not REAL_DEIT.is_file(), reason=f"DeiT-Tiny's weights are not at {REAL_DEIT}")
def test_the_real_deit_tiny_has_the_registered_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_backbone(DEIT, file=str(REAL_DEIT)).sha256 in BACKBONES[DEIT].sha256
    monkeypatch.setenv("DAFUSE_WEIGHTS", str(REAL_DEIT.parent))
    vit = load_backbone(DEIT)
    assert vit.source == "folder"
    with torch.no_grad():
        features = vit(torch.zeros(1, 3, 224, 224))
    assert features.isfinite().all()
