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
import pytest
import timm
import torch
from huggingface_hub import constants
from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError
from safetensors.torch import save_file
from torch import Tensor

from conftest import SHARED
from dafuse.backbones.load import load_backbone
from dafuse.backbones.weights import BACKBONES, COMPACT, locate
from dafuse.data.preprocessing import NORMALISATIONS
from dafuse.errors import DafuseError
from dafuse.progress import Progress

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
    assert f"--weights_sha256 {digest}" in str(caught.value)  # what to do, ready to copy
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


def test_bare_names_are_refused_with_the_tags_there_are() -> None:
    with pytest.raises(DafuseError, match="does not name one set of weights; choose") as caught:
        load_backbone("vit_base_patch16_224")
    for tag in ("augreg_in21k", "augreg_in21k_ft_in1k", "augreg2_in21k_ft_in1k"):
        assert f"vit_base_patch16_224.{tag}" in str(caught.value)
    with pytest.raises(DafuseError, match=f"choose one of {DEIT}"):
        load_backbone("deit_tiny_patch16_224.another")


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("vit_bas_patch16_224.augreg_in21k", "vit_base_patch16_224.augreg_in21k"),
        ("diet_tiny_patch16_224.fb_in1k", DEIT),
        ("dafuse_compact_patch8_64", COMPACT),
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


def test_models_that_are_no_plain_vits_are_refused_before_anything_is_fetched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = cut_network(monkeypatch)
    with pytest.raises(DafuseError, match=r"resnet18\.a1_in1k is not a plain ViT"):
        load_backbone("resnet18.a1_in1k")
    assert calls == []


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
    assert f"download model.safetensors of timm/{DEIT}" in message
    assert "--weights FILE" in message
    assert f"{DEIT}.safetensors into the folder $DAFUSE_WEIGHTS" in message
    assert f"--backbone {COMPACT} needs no download" in message
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


def test_the_cache_is_enough(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = cut_network(monkeypatch)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", Hub(cached=weights))
    vit = load_backbone(DEIT, sha256=sha256(weights))
    assert vit.source == "hub"
    assert calls == []


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
    with pytest.raises(DafuseError, match=r"failed \(reset by peer\): download model") as caught:
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
    assert (vit.preprocessing.size, vit.preprocessing.resize) == (64, 73)
    assert calls == []
    with torch.no_grad():
        features = vit(torch.randn(3, 3, 64, 64, generator=torch.Generator().manual_seed(0)))
    assert features.isfinite().all()
    assert features.std(0).min() > 0  # images make a difference


@pytest.mark.skipif(not REAL_DEIT.is_file(), reason=f"DeiT-Tiny's weights are not at {REAL_DEIT}")
def test_the_real_deit_tiny_has_the_registered_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_backbone(DEIT, file=str(REAL_DEIT)).sha256 in BACKBONES[DEIT].sha256
    monkeypatch.setenv("DAFUSE_WEIGHTS", str(REAL_DEIT.parent))
    vit = load_backbone(DEIT)
    assert vit.source == "folder"
    with torch.no_grad():
        features = vit(torch.zeros(1, 3, 224, 224))
    assert features.isfinite().all()
