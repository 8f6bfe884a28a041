"""Features of images by onnxruntime, without torch.

from dafuse.backbones.extractor import Extractor

extractor = Extractor.embedded()
feats_NF = extractor.features(["cat.jpg", "dog.jpg"], depths="moments")
"""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dafuse.backbones.backbone import Need
from dafuse.backbones.card import (
    INPUT,
    files_beside,
    is_sealed_onnx,
    read_backbone_card,
    require_sealed_onnx,
)
from dafuse.backbones.depths import Depths, FeaturePart, width_of
from dafuse.backbones.registry import BACKBONES, COMPACT, is_packaged
from dafuse.data.decoding import AT_ONCE, AnyImages, as_list, in_parts, require_read
from dafuse.data.images import AnyImage, UnreadableImage
from dafuse.errors import DafuseError
from dafuse.progress import Progress

if TYPE_CHECKING:
    from onnx import ModelProto
    from onnxruntime import InferenceSession

FEATURES = "features"  # the output of `Extractor.graph`
GRIDS = (1, 2, 3, 5, 8, 13, 21, 34)  # of coloured squares: an image of each, from plain to busy


class Extractor:
    """A frozen network in an .onnx file made by `backbones.graph`: a `Backbone`."""

    offers: frozenset[Need] = frozenset({"features"})

    def __init__(
        self,
        file: str | Path,
        threads: int | None = None,
        device: str = "auto",
        checked: Mapping[str, str] | None = None,
    ) -> None:
        """Open a file.

        Args:
            file: a file written by `dafuse backbone export`
            threads: number of threads; default: one for each processor that the process may use
            device: cpu, cuda or mps (onnxruntime's provider for it); auto: cuda if it is there
            checked: the SHA-256 of files beside it, from a caller who checked its seal, too
        """
        path = self._file = Path(file).expanduser()
        self.threads = threads or available_processors()
        self.device = device  # as it was asked for
        is_checked = checked is not None
        self._session = open_session(path, self.threads, device, with_files=True, sealed=is_checked)
        self._card = read_backbone_card(self._session.get_modelmeta().custom_metadata_map, path)
        _require_weights(path, self._card.sha256, checked or {})
        self.tag, self.sha256 = self._card.tag, self._card.sha256
        self.preprocessing = self._card.preprocessing
        self.width, self.depth = self._card.width, self._card.depth

    @classmethod
    def embedded(
        cls, tag: str = COMPACT, threads: int | None = None, device: str = "auto"
    ) -> "Extractor":
        """Open a network inside the package."""
        path = embedded_graph(tag)
        weights = path.with_suffix(".safetensors")
        for needed in (path, weights):
            if not needed.is_file():
                raise DafuseError(f"{needed} is missing: install dafuse again")
        if (sha256 := _sha256_of(weights)) not in BACKBONES[tag].sha256:
            raise DafuseError(f"{weights} is damaged: install dafuse again")
        if not is_sealed_onnx(path):
            raise DafuseError(f"{path} is damaged: install dafuse again")
        return cls(path, threads, device, {weights.name: sha256})

    @property
    def file(self) -> Path | None:
        """The path of the file; None for a network inside the package."""
        return None if is_packaged(self.tag, self.sha256) else self._file

    @property
    def stages(self) -> list[tuple[int, int]]:
        """No stages: there are no places for adapters."""
        return []

    @property
    def pixels(self) -> int:
        """The side of the square that the network takes."""
        return self.preprocessing.size

    def parts(self, depths: Depths) -> list[FeaturePart]:
        """Return the parts that make up the features of these depths, in order."""
        if depths not in self._card.parts:
            names = ", ".join(self._card.parts)
            raise DafuseError(f"{self.tag} has features at depths {names}, not {depths!r}")
        return self._card.parts[depths]

    def width_at(self, depths: Depths) -> int:
        """Return the number of columns of the features of these depths."""
        return width_of(self.parts(depths))

    def features(
        self,
        images: AnyImages,
        depths: Depths = "moments",
        batch: int = AT_ONCE,
        progress: Progress | None = None,
    ) -> np.ndarray:
        """Return float32 features [N, F]; the first image that cannot be read is an error.

        Args:
            images: files, their bytes, Pillow images, or arrays uint8 [H, W, 3] of any sizes
            depths: the depths to read from the network
            batch: images that are decoded and computed together
            progress: counts each image
        """
        sources = as_list(images)
        rows = require_read(sources, self.each_features(sources, depths, batch, progress))
        return np.stack(rows) if rows else np.zeros((0, self.width_at(depths)), np.float32)

    def each_features(
        self,
        images: Sequence[AnyImage],
        depths: Depths = "moments",
        batch: int = AT_ONCE,
        progress: Progress | None = None,
    ) -> Iterator[np.ndarray | UnreadableImage]:
        """Yield the features [F] of each image in order, or the reason why it could not be read."""
        self.parts(depths)

        def compute(squares: list[np.ndarray]) -> np.ndarray:
            return self.encode(np.stack(squares), depths)

        cut = self.preprocessing.centre_square
        with (progress or Progress()).bar("features", len(images)) as bar:
            for result in in_parts(images, batch, compute, cut, self.threads):
                yield result
                bar.advance()

    def encode(self, squares_B3SS: np.ndarray, depths: Depths = "moments") -> np.ndarray:
        """Return features [B, F] of what `preprocessing.centre_square` cuts: float32 0 to 255."""
        wanted: dict[str, tuple[int, ...]] = {depths: (self.width_at(depths),)}
        (feats_BF,) = computed(self._session, self._file, squares_B3SS, wanted)
        return feats_BF

    def graph(self, depths: Depths) -> "ModelProto":
        """Return the network as one ONNX graph with all its weights; its output is ``features``."""
        self.parts(depths)
        return _read_whole(self._file, depths, FEATURES)


def embedded_graph(tag: str = COMPACT) -> Path:
    """Return the path of the graph of a network inside the package: beside its weights."""
    return Path(__file__).with_name(BACKBONES[tag].packaged).with_suffix(".onnx")


# each device's provider of onnxruntime, and the package that has it
PROVIDERS = {
    "cpu": ("CPUExecutionProvider", "onnxruntime"),
    "cuda": ("CUDAExecutionProvider", "onnxruntime-gpu"),
    "mps": ("CoreMLExecutionProvider", ""),
}


def open_session(
    path: Path,
    threads: int,
    device: str = "cpu",
    with_files: bool = False,
    sealed: bool = False,
) -> "InferenceSession":
    """Open the file by onnxruntime on this device, or say in one line why that is impossible.

    Pass ``with_files`` only after checking the files beside it that may have its weights, and
    ``sealed`` only after checking its seal.
    """
    try:
        from onnxruntime import InferenceSession, SessionOptions, get_available_providers
    except ImportError:
        raise DafuseError(
            ".onnx files need onnxruntime, which is not installed: pip install onnxruntime"
        ) from None
    if not path.is_file():
        raise DafuseError(f"there is no file {path}")
    if not os.access(path, os.R_OK):
        raise DafuseError(f"{path} cannot be read: permission denied")
    require_device(device)
    if not sealed:
        require_sealed_onnx(path)
    _require_inside(path, with_files)
    available = get_available_providers()
    if device == "auto":
        device = "cuda" if PROVIDERS["cuda"][0] in available else "cpu"
    provider, package = PROVIDERS[device]
    if provider not in available:
        how = f"pip install {package}" if package else "it needs a Mac"
        raise DafuseError(f"onnxruntime has no {device} here: {how}, or leave out --device")
    options = SessionOptions()
    options.log_severity_level = 4  # errors are raised, which is enough
    # an explicit number: onnxruntime ties threads that it counts itself to one processor each
    options.intra_op_num_threads = threads
    # waiting threads that spin slow down everything else
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    wanted = list(dict.fromkeys([provider, PROVIDERS["cpu"][0]]))
    try:
        return InferenceSession(path, options, providers=wanted)
    except Exception as error:  # onnxruntime has an error class for each failure
        raise DafuseError(f"{path} is not a complete .onnx file: {_in_a_line(error)}") from None


def computed(
    session: "InferenceSession",
    file: Path,
    squares_B3SS: np.ndarray,
    wanted: Mapping[str, tuple[int, ...]],
) -> list[np.ndarray]:
    """Return these outputs for a batch, each float32 and of this shape for every image."""
    try:
        outputs = session.run(list(wanted), {INPUT: squares_B3SS})
    except Exception as error:  # onnxruntime has an error class for each failure
        if isinstance(error, MemoryError):
            raise
        raise DafuseError(f"onnxruntime cannot run {file}: {_in_a_line(error)}") from None
    for (name, shape), array in zip(wanted.items(), outputs, strict=True):
        expected = (len(squares_B3SS), *shape)
        if getattr(array, "shape", None) != expected or array.dtype != np.float32:
            raise DafuseError(f"{file} is damaged: its {name} are not as it declares")
    return outputs


def _in_a_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _require_inside(path: Path, with_files: bool) -> None:
    """Refuse weights outside the file, or outside its folder if ``with_files``."""
    for name in files_beside(path):
        if not with_files or Path(name).name != name:
            raise DafuseError(
                f"{path} has weights in another file, {name!r}, which nothing checks: export it "
                "again"
            )
        if not path.with_name(name).is_file():
            raise DafuseError(f"{path.with_name(name)}, the weights of {path}, is missing")


def _require_weights(path: Path, sha256: str, checked: Mapping[str, str]) -> None:
    """Refuse weights beside a graph other than those it was made with."""
    for name in files_beside(path):
        if (checked.get(name) or _sha256_of(path.with_name(name))) != sha256:
            raise DafuseError(
                f"{path.with_name(name)} is damaged or was changed: bring back a copy of it, as "
                f"{path} was made with"
            )


def _sha256_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def session_of(content: bytes) -> "InferenceSession":
    """Open the bytes of an unwritten file, to compare its results."""
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.log_severity_level = 4  # errors are raised, which is enough
    return InferenceSession(content, options, providers=[PROVIDERS["cpu"][0]])


def made_up(size: int) -> np.ndarray:
    """Float pixels [N, 3, S, S], 0 to 255: grids of random colours, the same ones every time."""
    rng = np.random.default_rng(0)
    which = [np.arange(size) * grid // size for grid in GRIDS]
    grids = [rng.random((3, grid, grid), dtype=np.float32) for grid in GRIDS]
    return np.stack([255 * one[:, at][:, :, at] for one, at in zip(grids, which, strict=True)])


def require_device(device: str) -> None:
    """Refuse a name that is not a device's."""
    if device not in ("auto", *PROVIDERS):
        raise DafuseError(f"the device must be auto, {', '.join(PROVIDERS)}, not {device!r}")


def available_on(device: str) -> bool:
    """Tell whether onnxruntime can compute there; if it is missing, opening a file says so."""
    try:
        from onnxruntime import get_available_providers
    except ImportError:
        return device in ("auto", "cpu")
    return device == "auto" or PROVIDERS[device][0] in get_available_providers()


def available_processors() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _read_whole(file: Path, output: str, name: str) -> "ModelProto":
    """Return the part of a graph that computes this output, under a new name.

    It contains its weights, with float16 ones as float32, because quantisers want that.
    """
    import onnx
    from onnx.utils import Extractor as Part

    proto = onnx.load(file)
    _fold_constants(proto)
    (given,) = [value.name for value in proto.graph.input]
    part: ModelProto = Part(proto).extract_model([given], [output])
    for node in part.graph.node:
        for number, made in enumerate(node.output):
            if made == output:
                node.output[number] = name
        for number, taken in enumerate(node.input):
            if taken == output:
                node.input[number] = name
    part.graph.output[0].name = name
    return part


def _fold_constants(proto: "ModelProto") -> None:
    """Apply casts and transposes of weights now, as onnxruntime would on opening the file."""
    from onnx import numpy_helper

    graph = proto.graph
    values = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
    nodes, used = [], set()
    for node in graph.node:
        if node.op_type in ("Cast", "Transpose") and node.input[0] in values:
            value = values[node.input[0]]
            cast = node.op_type == "Cast"
            values[node.output[0]] = value.astype(np.float32) if cast else value.T
        else:
            nodes.append(node)
            used.update(node.input)
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend(
        numpy_helper.from_array(np.asarray(values[name], order="C"), name)
        for name in sorted(used & values.keys())
    )
