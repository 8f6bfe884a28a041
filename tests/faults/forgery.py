"""Files whose hashes are right and whose contents are not: nothing of them may be believed."""

import json
from collections.abc import Callable
from copy import deepcopy
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
from safetensors.numpy import load, save

from dafuse.backbones.card import sealed_onnx
from dafuse.files import read_json
from dafuse.sealed import SEAL, write_sealed
from faults.harm import in_order

Forge = Callable[[Path, Random], str]
ESCAPES = "\x1b[2J\x1b]0;owned\x07\r\x9b31m"
DEEP: list[Any] = []
for _ in range(200):
    DEEP = [DEEP]
STRANGE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**70), 10**400, 0.5, -0.0, 1e308),
    *(float("nan"), float("inf"), -float("inf")),
    *("", "0", "unknown", ESCAPES, "../../outside", "/dev/zero", "\0", "\u202e", "é" * 5000),
    *("__class__", "os.system", "{0.__class__}", "<script>alert(1)</script>"),
    *([], {}, [None], [[]], {"": {}}, [1, "a", None], DEEP),
)


def twisted(content: Any, rng: Random) -> tuple[Any, str]:
    """A copy in which one value is another, is missing, or is there twice; and what it is."""
    copy = deepcopy(content)
    places = list(_places(copy, ""))
    if not places:
        return rng.choice(STRANGE), "all of it is another"
    inside, key, where = rng.choice(places)
    way = rng.choice(["another", "another", "another", "other type", "missing", "more"])
    if way == "missing":
        del inside[key]
    elif way == "more" and isinstance(inside, dict):
        inside[rng.choice(["extra", ESCAPES, "__class__", ""])] = inside[key]
    elif way == "more":
        inside.extend(inside[key : key + 1] * rng.choice([1, 50]))
    elif way == "other type":
        inside[key] = rng.choice([[inside[key]], {"value": inside[key]}, str(inside[key])])
    else:
        inside[key] = rng.choice(STRANGE)
    return copy, f"{where} is {way}: {inside.get(key) if isinstance(inside, dict) else inside!r}"


def _places(content: Any, where: str) -> Any:
    if isinstance(content, dict):
        pairs = list(content.items())
    else:
        pairs = list(enumerate(content)) if isinstance(content, list) else []
    for key, value in pairs:
        yield content, key, f"{where}/{key}"
        yield from _places(value, f"{where}/{key}")


def forge_version(model: Path, rng: Random) -> str:
    """A version's record is another, and model.json has its hash."""
    file = _counting(model)
    content, said = twisted(read_json(file), rng)
    _point_to(model, file, json.dumps(content, indent=1))
    return f"{file.name}: {said}"


def forge_older_version(model: Path, rng: Random) -> str:
    """The record before the one that counts is another, and that one has its hash."""
    file = _counting(model)
    content = read_json(file)
    if content["parent"] is None:
        return forge_version(model, rng)
    older = file.with_name(f"{content['parent']['number']:04d}.json")
    changed, said = twisted(read_json(older), rng)
    text = json.dumps(changed, indent=1)
    older.write_text(text)
    content["parent"]["sha256"] = sha256(text.encode()).hexdigest()
    _point_to(model, file, json.dumps(content, indent=1))
    return f"{older.name}: {said}"


def forge_pointer(model: Path, rng: Random) -> str:
    """model.json says something else."""
    return f"model.json: {_twist(model / 'model.json', rng)}"


def forge_object(model: Path, rng: Random) -> str:
    """An object holds other tensors, and all that leads to it has its hash."""
    old = rng.choice(in_order((model / "objects").glob("*.safetensors")))
    data, said = forged_tensors(old.read_bytes(), rng)
    new = old.with_name(f"{sha256(data).hexdigest()}.safetensors")
    old.unlink()
    new.write_bytes(data)
    file = _counting(model)
    _point_to(model, file, file.read_text().replace(old.stem, new.stem))
    return f"{old.name[:8]}: {said}"


def forged_tensors(data: bytes, rng: Random) -> tuple[bytes, str]:
    """A safetensors file of other tensors, or with a header that lies."""
    way = rng.choice(["missing", "renamed", "shape", "type", "values", "header", "header", "none"])
    arrays = load(data)
    name = rng.choice(sorted(arrays) or [""])
    array = arrays.get(name, np.zeros(1, np.float32))
    if way == "none":
        arrays = {}
    elif way == "missing":
        arrays.pop(name, None)
    elif way == "renamed":
        arrays[rng.choice([ESCAPES, "", "a/b/c", f"{name}2"])] = arrays.pop(name, array)
    elif way == "shape":
        shapes = [array.reshape(-1), array[None], array.reshape(-1)[:1], array.reshape(-1)[:0]]
        arrays[name] = rng.choice(shapes)
    elif way == "type":
        with np.errstate(all="ignore"):
            arrays[name] = array.astype(rng.choice([np.float64, np.int8, np.bool_, np.uint64]))
    elif way == "values":
        other = array.copy()
        with np.errstate(all="ignore"):
            other[...] = np.array(rng.choice([0, -1, 1e30, np.nan, np.inf])).astype(array.dtype)
        arrays[name] = other
    else:
        return _forged_header(data, rng)
    return save(arrays), f"{name} {way}"


def _forged_header(data: bytes, rng: Random) -> tuple[bytes, str]:
    """Sizes that are claimed and are not there, strange types, a header of any JSON."""
    length = int.from_bytes(data[:8], "little")
    header: Any = json.loads(data[8 : 8 + length])
    way = rng.choice(["huge", "length", "twisted"])
    if way == "length":
        size = rng.choice([0, 2**63, 2**64 - 1, length + 10**9])
        return size.to_bytes(8, "little") + data[8:], f"header of {size} bytes"
    said = "a tensor of 8 TiB"
    if way == "huge":
        for about in header.values():
            if "shape" in about:
                about["shape"] = [2**20, 2**20, 2]
    else:
        header, said = twisted(header, rng)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + length :], f"header: {said}"


def forge_onnx(file: Path, rng: Random) -> str:
    """An .onnx file with other properties, or another graph, and its seal is right."""
    proto = onnx.load(file, load_external_data=False)
    graph = proto.graph
    way = rng.choice(["property", "property", "property", "graph", "nonsense"])
    if way == "nonsense":
        file.write_bytes(sealed_onnx(rng.randbytes(rng.choice([0, 10, 1000]))))
        return "nonsense that is sealed"
    if way == "property":
        ours = [one for one in proto.metadata_props if one.key.startswith("dafuse.")]
        one = rng.choice(ours)
        if rng.random() < 0.2:
            one.value = rng.choice(["", "{", "\0", "[" * 100_000, ESCAPES])
            said = f"{one.key} is no JSON"
        else:
            content, told = twisted([json.loads(one.value)], rng)
            one.value = json.dumps(content[0] if content else None)
            said = f"{one.key}{told}"
    else:
        said = _forge_graph(graph, rng)
    file.write_bytes(sealed_onnx(proto.SerializeToString()))
    return said


def _forge_graph(graph: Any, rng: Random) -> str:
    way = rng.choice(["output", "swap", "node", "weights", "shape", "elsewhere", "input"])
    if way == "output":
        rng.choice(graph.output).name = rng.choice(["", "nothing", ESCAPES])
    elif way == "input":
        graph.input[0].name = rng.choice(["", "image"])
    elif way == "swap":
        one, other = graph.node[0], graph.node[-1]
        one.op_type, other.op_type = other.op_type, one.op_type
    elif way == "node":
        del graph.node[rng.randrange(len(graph.node))]
    elif way == "weights":
        del graph.initializer[rng.randrange(len(graph.initializer))]
    elif way == "shape":
        tensor = rng.choice(graph.initializer)
        del tensor.dims[:]
        tensor.dims.extend(rng.choice([[2**40], [-1], [0], [3, 5, 7], []]))
    else:
        tensor = rng.choice(graph.initializer)
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        del tensor.external_data[:]
        place = rng.choice(["../outside", "/dev/zero", "/etc/passwd", "eye.onnx", ""])
        tensor.external_data.add(key="location", value=place)
    return f"graph: another {way}"


def forge_run(runs: Path, rng: Random) -> str:
    """A file of a run holds other JSON, sealed again where it was."""
    file = rng.choice(sorted(runs.rglob("*.json")))
    return f"{file.relative_to(runs)}: {_twist(file, rng)}"


def forge_checkpoint(run: Path, rng: Random) -> str:
    """A checkpoint holds other tensors, and its record has their hash."""
    (file,) = (run / "checkpoints").glob("*.safetensors")
    data, said = forged_tensors(file.read_bytes(), rng)
    file.write_bytes(data)
    record = read_json(file.with_suffix(".json"))
    record.pop(SEAL, None)
    write_sealed(file.with_suffix(".json"), {**record, "sha256": sha256(data).hexdigest()})
    return f"{file.name}: {said}"


def _counting(model: Path) -> Path:
    return model / "versions" / f"{read_json(model / 'model.json')['version']:04d}.json"


def _point_to(model: Path, file: Path, text: str) -> None:
    file.write_text(text)
    pointer = read_json(model / "model.json")
    pointer.pop(SEAL, None)
    write_sealed(model / "model.json", pointer | {"sha256": sha256(text.encode()).hexdigest()})


def _twist(file: Path, rng: Random) -> str:
    """Another content, sealed again."""
    content = read_json(file)
    content.pop(SEAL, None)
    content, said = twisted(content, rng)
    write_sealed(file, content)
    return said
