"""Features by onnxruntime are those of torch, and need none of it."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image

from dafuse.backbones.card import SEAL, sealed_onnx
from dafuse.backbones.depths import DEPTHS, Depths, FeaturePart
from dafuse.backbones.extractor import Extractor, embedded_graph
from dafuse.backbones.graph import graph
from dafuse.backbones.load import load_backbone
from dafuse.backbones.registry import BACKBONES, COMPACT, SMALL
from dafuse.backbones.vit import ViT
from dafuse.commands.doctor import doctor
from dafuse.data.batches import Loader
from dafuse.data.dataset import Dataset, ImageSet
from dafuse.data.images import UnreadableImage
from dafuse.engine.devices import launch
from dafuse.engine.trainer import Trainer
from dafuse.errors import DafuseError
from dafuse.product.predictor import ExportedModel
from dafuse.progress import Bar, Progress
from helpers.photographs import photographs, write_photographs
from helpers.processes import HEAVY, clean_environment
from helpers.small_datasets import small_dataset
from helpers.small_networks import PREPROCESSING, small_vit

NESTED = "[" * 100_000
WEIGHTS = embedded_graph().with_suffix(".safetensors")


@pytest.fixture(scope="module")
def embedded() -> Extractor:
    return Extractor.embedded(threads=1)


@pytest.fixture(scope="module")
def small_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network with its weights inside the file."""
    file = tmp_path_factory.mktemp("graph") / "small.onnx"
    file.write_bytes(graph(small_vit()))
    return file


def by_torch(vit: ViT, items: list[Path] | np.ndarray, depths: Depths) -> np.ndarray:
    """Return features as methods have them."""
    images = ImageSet(items, np.zeros(len(items), np.int64))
    dataset = Dataset("pictures", ["all"], images, images)
    fabric = launch("cpu", "fp32", deterministic=False)
    trainer = Trainer(vit, Loader(dataset, vit.preprocessing, fabric.device), fabric, seed=0)
    return trainer.features(images, None, depths=depths)[0].cpu().numpy()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Photographs of several sizes and kinds, one of them taken with the camera on its side."""
    folder = tmp_path_factory.mktemp("files") / "photographs"
    files = write_photographs(folder)
    turned = folder / "turned.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation
    Image.fromarray(photographs()[0]).save(turned, exif=exif)
    return [*files, turned]


@pytest.mark.parametrize("depths", DEPTHS)
def test_the_embedded_networks_features_are_torchs(
    depths: Depths, embedded: Extractor, files: list[Path]
) -> None:
    expected_NF = by_torch(load_backbone(COMPACT), files, depths)
    found_NF = embedded.features(files, depths)
    assert found_NF.dtype == np.float32
    assert np.abs(found_NF - expected_NF).max() < 1e-4
    assert expected_NF.std(0).min() > 1e-3  # they are not all the same
    assert found_NF.shape[1] == embedded.width_at(depths) == load_backbone(COMPACT).width_at(depths)
    assert embedded.parts(depths) == load_backbone(COMPACT).parts(depths)


@pytest.mark.parametrize("depths", DEPTHS)
def test_so_are_those_of_a_network_with_its_weights_inside(
    depths: Depths, small_file: Path
) -> None:
    items = small_dataset([5, 5]).train.items
    assert isinstance(items, np.ndarray)
    found_NF = Extractor(small_file, threads=1).features(items, depths)
    assert np.abs(found_NF - by_torch(small_vit(), items, depths)).max() < 1e-4


def test_features_do_not_depend_on_the_batch(embedded: Extractor) -> None:
    images = photographs()
    together = embedded.features(images)
    for batch in (1, 5, len(images) - 1):
        assert np.abs(embedded.features(images, batch=batch) - together).max() < 1e-5
    assert np.abs(embedded.features(images[::-1])[::-1] - together).max() < 1e-5


def test_an_extractor_says_what_it_is(embedded: Extractor, small_file: Path) -> None:
    vit = load_backbone(COMPACT)
    assert (embedded.tag, embedded.sha256) == (COMPACT, BACKBONES[COMPACT].sha256[0])
    assert embedded.preprocessing == vit.preprocessing
    assert (embedded.pixels, embedded.width, embedded.depth) == (128, vit.width, vit.depth)
    small = Extractor(small_file)
    assert (small.tag, small.preprocessing, small.depth) == ("small", PREPROCESSING, 3)
    assert small.parts("top") == [
        *(FeaturePart(n, "cls", 24) for n in range(3)),
        FeaturePart(2, "mean", 24),
    ]
    assert small.threads >= 1


def test_images_of_every_kind(embedded: Extractor, files: list[Path]) -> None:
    path = files[1]  # a PNG: it loses nothing
    image = Image.open(path)
    kinds = [path, str(path), path.read_bytes(), image, np.asarray(image)]
    feats_NF = embedded.features(kinds, "last")
    assert np.ptp(feats_NF, axis=0).max() == 0
    assert embedded.features(path, "last").shape == (1, 192)
    assert embedded.features([], "moments").shape == (0, 27 * 192)


def test_an_image_that_cannot_be_read(embedded: Extractor, tmp_path: Path) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_text("no image")
    first, second, third = embedded.each_features([photographs()[0], broken, photographs()[1]])
    assert isinstance(second, UnreadableImage)
    expected = embedded.features(photographs()[:2])
    assert np.abs(np.stack([first, third]) - expected).max() < 1e-5  # type: ignore[list-item]
    with pytest.raises(DafuseError, match=r"broken\.jpg cannot be read: not an image"):
        embedded.features(broken)


def test_progress_is_told_of_each_image(embedded: Extractor) -> None:
    bars: list[Bar] = []

    class Kept(Progress):
        @contextmanager
        def bar(self, label: str, total: int) -> Iterator[Bar]:
            bars.append(Bar(total))
            yield bars[-1]

    embedded.features(photographs()[:3], progress=Kept(), batch=2)
    assert [(bar.total, bar.done) for bar in bars] == [(3, 3)]


def test_unknown_depths_are_named(embedded: Extractor) -> None:
    with pytest.raises(DafuseError, match="last, top, all, moments, not 'first'"):
        embedded.features([], "first")  # type: ignore[arg-type]


def test_the_packages_graph_is_what_the_generator_makes(tmp_path: Path) -> None:
    """Values are compared, as another version of torch may arrange the nodes in another way."""
    made = tmp_path / embedded_graph().name
    made.write_bytes(graph(load_backbone(COMPACT), WEIGHTS))
    shutil.copy(WEIGHTS, tmp_path)
    images = photographs()
    for depths in DEPTHS:
        expected = Extractor(made).features(images, depths)
        assert np.abs(Extractor.embedded().features(images, depths) - expected).max() < 1e-5
    protos = [onnx.load(file, load_external_data=False) for file in (made, embedded_graph())]
    cards = [{prop.key: prop.value for prop in proto.metadata_props} for proto in protos]
    for card in cards:
        del card["dafuse.made_by"]
    assert cards[0] == cards[1]


def test_the_packages_graph_has_no_weights_of_its_own() -> None:
    assert embedded_graph().stat().st_size < 200_000
    proto = onnx.load(embedded_graph(), load_external_data=False)
    pointers = [tensor.external_data for tensor in proto.graph.initializer if tensor.external_data]
    places = [{entry.key: entry.value for entry in pointer} for pointer in pointers]
    pointed = sum(int(place["length"]) for place in places)
    assert pointed > 0.99 * (WEIGHTS.stat().st_size - 20_000)
    assert {place["location"] for place in places} == {WEIGHTS.name}


def test_no_torch_is_needed(embedded: Extractor, files: list[Path]) -> None:
    code = f"""
import json, sys
for name in {[*HEAVY, "safetensors", "huggingface_hub"]}:
    sys.modules[name] = None
from dafuse.backbones.extractor import Extractor
eye = Extractor.embedded(threads=1)
json.dump(eye.features({str(files[0])!r}, "all").tolist(), sys.stdout)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, env=clean_environment(), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = np.array(json.loads(done.stdout))
    assert np.abs(found - embedded.features(files[0], "all")).max() < 1e-5


def broken(kind: str, folder: Path, small_file: Path) -> Path:
    """A file that is not what it should be."""
    path = folder / "broken.onnx"
    data = small_file.read_bytes()
    if kind == "text":
        path.write_text("no network")
    elif kind == "cut off":
        path.write_bytes(data[: len(data) // 2])
    elif kind in ("another's", "newer", "damaged"):
        proto = onnx.load(small_file)
        changes = {"newer": {"dafuse.backbone_format": "99"}, "damaged": {"dafuse.parts": "[1"}}
        kept = {} if kind == "another's" else {p.key: p.value for p in proto.metadata_props}
        onnx.helper.set_model_props(proto, kept | changes.get(kind, {}))
        path.write_bytes(sealed_onnx(proto.SerializeToString()))
    elif kind == "not sealed":
        path.write_bytes(data[: data.rindex(SEAL.encode()) - 4])
    elif kind == "no network":
        path.write_bytes(sealed_onnx(b"no network"))
    elif kind == "weights missing":
        shutil.copy(embedded_graph(), path)
    return path


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("missing", "there is no file"),
        ("text", "does not end in dafuse's checksum"),
        ("cut off", "is cut off or damaged"),
        ("not sealed", "an older dafuse wrote it; write it again (dafuse export, dafuse backbone"),
        ("no network", "is not a complete .onnx file"),
        ("another's", "is not a backbone exported by dafuse"),
        ("newer", "has format 99, this dafuse reads 2: export it again"),
        ("damaged", "is damaged"),
        ("weights missing", ", is missing"),
    ],
)
def test_other_files_are_refused_by_name(
    kind: str, expected: str, tmp_path: Path, small_file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = broken(kind, tmp_path, small_file)
    with pytest.raises(DafuseError) as refused:
        Extractor(path)
    message = str(refused.value)
    assert str(tmp_path) in message
    assert expected in message
    assert "\n" not in message
    assert capfd.readouterr() == ("", "")


def test_a_changed_bit_is_refused_wherever_it_is(small_file: Path, tmp_path: Path) -> None:
    data, path = small_file.read_bytes(), tmp_path / "small.onnx"
    for place in [*range(0, len(data), len(data) // 20), len(data) - 100, len(data) - 1]:
        path.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        with pytest.raises(DafuseError, match=r"small\.onnx (is damaged|does not end in dafuse's)"):
            Extractor(path)
    path.write_bytes(data + b"\0")
    with pytest.raises(DafuseError, match="is damaged or was changed"):
        Extractor(path)


def test_doctor_says_what_is_wrong_with_an_exported_network(
    small_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DAFUSE_WEIGHTS", str(tmp_path))
    path = tmp_path / f"{SMALL}.onnx"
    path.write_bytes(small_file.read_bytes())
    doctor()
    assert f"ok  weights {SMALL}: {path}, exported\n" in capsys.readouterr().out
    path.write_bytes(small_file.read_bytes()[:-1])
    doctor()
    assert f"--  weights {SMALL}: {path} is damaged or was changed" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["changed", "a folder", "elsewhere"])
def test_weights_beside_a_graph_are_checked_too(kind: str, tmp_path: Path) -> None:
    graph = Path(shutil.copy(embedded_graph(), tmp_path))
    weights = graph.with_suffix(".safetensors")
    data = bytearray(WEIGHTS.read_bytes())
    weights.write_bytes(data)
    Extractor(graph)
    if kind == "changed":
        data[-1] ^= 1
        weights.write_bytes(data)
        said = "was changed: bring back a copy of it"
    elif kind == "a folder":
        weights.unlink()
        weights.mkdir()
        said = ", is missing"
    else:
        proto = onnx.load(graph, load_external_data=False)
        for tensor in proto.graph.initializer:
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = f"../{tmp_path.name}/{weights.name}"
        graph.write_bytes(sealed_onnx(proto.SerializeToString()))
        said = "has weights in another file, '.*', which nothing checks"
    with pytest.raises(DafuseError, match=said):
        Extractor(graph)
    with pytest.raises(DafuseError, match="has weights in another file"):
        ExportedModel(graph)


@pytest.mark.parametrize("kind", ["no graph", "graph changed", "no weights", "cut off", "changed"])
def test_a_damaged_package_is_said(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    eye = tmp_path / "eye.onnx"
    monkeypatch.setattr("dafuse.backbones.extractor.embedded_graph", lambda _: eye)
    if kind != "no graph":
        shutil.copy(embedded_graph(), eye)
    if kind == "graph changed":
        eye.write_bytes(eye.read_bytes().replace(b"LayerNormalization", b"layerNormalization", 1))
    data = WEIGHTS.read_bytes()
    if kind != "no weights":
        changed = {"cut off": data[:-100], "changed": data[:-1] + bytes([data[-1] ^ 1])}
        eye.with_suffix(".safetensors").write_bytes(changed.get(kind, data))
    file, what = ("eye.onnx" if "graph" in kind else "eye.safetensors"), kind.split()[0]
    said = "is missing" if what == "no" else "is damaged"
    with pytest.raises(DafuseError, match=f"{file} {said}: install dafuse again"):
        Extractor.embedded()


def test_a_backbone_is_no_classifier(small_file: Path) -> None:
    with pytest.raises(DafuseError, match="it says nothing about classes"):
        ExportedModel(small_file)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("made_by", NESTED),
        ("tag", "\x1b[2J"),
        ("width", -3),
        ("parts", {"last": [[0, "cls", 10**12]]}),
        ("parts", {"last": [[0, "all of it", 24]]}),
        ("preprocessing", {"size": 10**6, "mean": [0] * 3, "std": [1] * 3, "resize": 10**6}),
        ("preprocessing", {"size": 32, "mean": [0], "std": [1] * 3, "resize": 32}),
        ("preprocessing", {"size": "32", "mean": [0] * 3, "std": [1] * 3, "resize": 32}),
    ],
)
def test_a_sealed_file_that_says_nonsense_is_refused(
    name: str, value: object, small_file: Path, tmp_path: Path
) -> None:
    proto, path = onnx.load(small_file), tmp_path / "forged.onnx"
    properties = {prop.key: prop.value for prop in proto.metadata_props}
    forged = value if value == NESTED else json.dumps(value)
    onnx.helper.set_model_props(proto, properties | {f"dafuse.{name}": forged})
    path.write_bytes(sealed_onnx(proto.SerializeToString()))
    with pytest.raises(DafuseError, match="is damaged") as refused:
        Extractor(path).features(photographs()[0], "last")
    assert str(refused.value).isprintable()


def test_missing_onnxruntime_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(DafuseError, match="pip install onnxruntime"):
        Extractor.embedded()


def test_weights_of_another_network_are_refused() -> None:
    with pytest.raises(DafuseError, match="does not have the values of"):
        graph(small_vit(), WEIGHTS)
