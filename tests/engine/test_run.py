"""Runs in processes of their own: resume, kills, refusals, a full disk."""

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dafuse.commands.run import parse
from dafuse.engine.config import RunConfig
from dafuse.engine.run import run
from dafuse.errors import DafuseError
from dafuse.sealed import read_sealed
from faults.command import Hangs, start
from helpers.processes import clean_environment, dafuse, limit_files, undrawn
from helpers.small_datasets import small_dataset

TASKS = 3
OPTIONS = [
    *("--increment", "2", "--device", "cpu", "--method.epochs", "2", "--method.batch_size", "4"),
    *("--method.align_epochs", "2", "--method.align_samples", "8"),
]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six classes of a few images, as folders; the test images are split off."""
    root = tmp_path_factory.mktemp("images")
    dataset = small_dataset([5] * 6)
    for pixels, label in zip(dataset.train.items, dataset.train.labels, strict=True):
        folder = root / dataset.classes[label]
        folder.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{len(list(folder.iterdir()))}.png")
    return root


def command(images: Path, out: Path, *extra: str) -> list[str]:
    return ["run", "--data", str(images), "--out", str(out), *OPTIONS, *extra]


def outcome(out: Path) -> tuple[bytes, dict[str, Any]]:
    """Return what must be bit-identical: the tensors, and the results without their times."""
    (tensors,) = (out / "checkpoints").glob("*.safetensors")
    results = read_sealed(out / "results.json", "")
    for task in results["tasks"]:
        del task["seconds"]
    return tensors.read_bytes(), results


@pytest.fixture(scope="module")
def whole(images: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A run that nothing disturbed, and how long it took."""
    out = tmp_path_factory.mktemp("whole") / "run"
    began = time.monotonic()
    done = dafuse(*command(images, out))
    assert done.status == 0, done.err
    return out, time.monotonic() - began


def finish(images: Path, out: Path) -> None:
    done = dafuse(*command(images, out), before=undrawn)
    assert done.status == 0, done.err


def test_a_run_leaves_everything_the_report_needs(whole: tuple[Path, float]) -> None:
    out, _ = whole
    names = {path.name for path in out.iterdir()}
    assert {"config.json", "provenance.json", "results.json", "events.jsonl"} <= names
    assert {"report.html", "log.txt", "checkpoints"} <= names
    results = json.loads((out / "results.json").read_text())
    assert results["status"] == "finished"
    assert [len(row) for row in results["correct"]] == [1, 2, 3]
    assert sum(map(sum, results["confusion"])) == sum(results["total"][-1])
    assert {"train", "fisher", "fuse", "statistics", "align", "evaluate"} <= set(
        results["tasks"][-1]["seconds"]
    )
    events = [json.loads(line)["event"] for line in (out / "events.jsonl").open()]
    assert events == ["start", *["task"] * TASKS, "finish"]
    assert len(list((out / "checkpoints").iterdir())) == 2  # the last one only
    provenance = json.loads((out / "provenance.json").read_text())
    assert provenance["weights"]["source"] == "package"
    assert len(provenance["data_fingerprint"]) == 64


def test_the_same_command_twice_computes_nothing_again(
    images: Path, whole: tuple[Path, float]
) -> None:
    out, _ = whole
    before = outcome(out)
    as_users_do = [sys.executable, "-m", "dafuse", *command(images, out)]
    done = subprocess.run(as_users_do, env=clean_environment(), capture_output=True, text=True)
    assert done.returncode == 0
    assert "finished; nothing to compute" in done.stderr
    assert outcome(out) == before


def test_another_configuration_in_the_folder_is_refused(
    images: Path, whole: tuple[Path, float]
) -> None:
    out, _ = whole
    before = outcome(out)
    done = dafuse(*command(images, out, "--method.alpha", "2"))
    assert done.status == 2
    assert "method.alpha was 1.25, now 2.0" in done.err
    assert outcome(out) == before


POINTS = {
    "before the first task ends": ("dafuse.engine.trainer", "Trainer.encode", 3),
    "in training": ("dafuse.engine.trainer", "Trainer.encode", 20),
    "in fusion": ("dafuse.methods.daf", "fuse", 2),
    "in alignment": ("dafuse.methods.training", "align", 1),
    "writing the configuration": ("os", "replace", 1),
    "writing the first checkpoint's tensors": ("os", "replace", 3),
    "between a checkpoint's tensors and its record": ("os", "replace", 7),
    "between a checkpoint and the results": ("os", "replace", 8),
    "syncing": ("os", "fsync", 12),
}


@pytest.mark.parametrize("point", POINTS.values(), ids=POINTS)
def test_killed_at_a_point_it_resumes_bit_identically(
    images: Path, whole: tuple[Path, float], tmp_path: Path, point: tuple[str, str, int]
) -> None:
    out = tmp_path / "run"
    killed = dafuse(*command(images, out), at=point)
    assert killed.status == -signal.SIGKILL, killed.err
    finish(images, out)
    assert outcome(out) == outcome(whole[0])
    assert not list(out.rglob("*.tmp"))


def test_killed_again_and_again_at_random_moments(
    images: Path, whole: tuple[Path, float], tmp_path: Path
) -> None:
    reference, seconds = whole
    out = tmp_path / "run"
    moments = random.Random(0)
    for _ in range(4):
        with suppress(Hangs):  # and is killed
            start(*command(images, out)).wait(seconds * moments.uniform(0.4, 1.0))
    finish(images, out)
    assert outcome(out) == outcome(reference)


def test_ctrl_c_says_how_to_go_on_and_loses_nothing(
    images: Path, whole: tuple[Path, float], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    stopped = dafuse(*command(images, out), at=POINTS["in training"], by=signal.SIGINT)
    assert stopped.status == 130
    assert "the same command goes on where it stopped" in stopped.err
    assert "Traceback" not in stopped.err
    finish(images, out)
    assert outcome(out) == outcome(whole[0])


def test_a_full_disk_keeps_the_last_checkpoint(
    images: Path, whole: tuple[Path, float], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    sizes = [path.stat().st_size for path in (whole[0] / "checkpoints").glob("*.safetensors")]
    failed = dafuse(*command(images, out), before=partial(limit_files, sizes[0] - 1000))
    assert failed.status == 2
    assert "cannot write" in failed.err
    assert "Traceback" not in failed.err
    results = json.loads((out / "results.json").read_text())
    assert results["status"] == "running"
    assert len(results["correct"]) == TASKS - 1
    finish(images, out)
    assert outcome(out) == outcome(whole[0])


def test_resuming_with_other_images_is_refused(images: Path, tmp_path: Path) -> None:
    root, out = tmp_path / "images", tmp_path / "run"
    shutil.copytree(images, root)
    dafuse(*command(root, out), at=POINTS["in fusion"])
    Image.new("RGB", (9, 9)).save(root / "class 0" / "0.png")
    done = dafuse(*command(root, out))
    assert done.status == 2
    assert "the data changed" in done.err


def test_a_damaged_checkpoint_is_named(
    images: Path, whole: tuple[Path, float], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(whole[0], out)
    (tensors,) = (out / "checkpoints").glob("*.safetensors")
    tensors.write_bytes(tensors.read_bytes()[:-10])
    done = dafuse(*command(images, out))
    assert done.status == 2
    assert str(tensors) in done.err
    assert "Traceback" not in done.err


def test_what_a_kill_left_of_an_earlier_task_goes(
    images: Path, whole: tuple[Path, float], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(whole[0], out)
    (tensors,) = (out / "checkpoints").glob("*.safetensors")
    shutil.copy(tensors, tensors.with_stem("task-0001"))
    finish(images, out)
    assert outcome(out) == outcome(whole[0])


def test_two_processes_cannot_share_a_folder(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    holder = """
import sys
from dataclasses import replace
from pathlib import Path
from dafuse.engine.folder import RunFolder
with RunFolder(Path(sys.argv[1])).open({}, "hash"):
    print("held", flush=True)
    sys.stdin.read()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", holder, str(out)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=clean_environment(),
    )
    assert process.stdout is not None
    assert process.stdin is not None
    process.stdout.readline()
    try:
        done = dafuse(*command(images, out))
    finally:
        process.stdin.close()
        process.wait()
    assert done.status == 2
    assert "another process is running" in done.err


def test_divergence_stops_with_task_epoch_and_step(images: Path, tmp_path: Path) -> None:
    done = dafuse(*command(images, tmp_path / "run", "--method.lr", "1e30"))
    assert done.status == 2
    assert "in task 1, epoch" in done.err
    assert "Traceback" not in done.err


def test_bf16_runs(images: Path, tmp_path: Path) -> None:
    done = dafuse(*command(images, tmp_path / "run", "--precision", "bf16"), before=undrawn)
    assert done.status == 0, done.err


def test_bad_images_are_skipped_named_and_counted(images: Path, tmp_path: Path) -> None:
    root = tmp_path / "images"
    shutil.copytree(images, root)
    (root / "class 0" / "empty.png").touch()
    (root / "class 1" / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 not much of a JPEG")
    out = tmp_path / "run"
    done = dafuse("run", "--data", str(root), "--out", str(out), "--method", "simplecil",
                  "--increment", "3", "--device", "cpu")  # fmt: skip
    assert done.status == 0, done.err
    skipped = json.loads((out / "results.json").read_text())["skipped"]
    assert [Path(line.partition(":")[0]).name for line in sorted(skipped)] == [
        "empty.png",
        "broken.jpg",
    ]
    assert "empty.png" in done.err
    assert "broken.jpg" in (out / "report.html").read_text()


def test_a_run_that_cannot_begin_leaves_no_folder(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    for wrong in (["--increment", "7"], ["--method.epochs", "0"], ["--seed", "-1"]):
        done = dafuse(*command(images, out, *wrong))
        assert done.status == 2
        assert "Traceback" not in done.err
        assert not out.exists()


def test_a_folder_of_something_else_is_refused(images: Path, tmp_path: Path) -> None:
    for foreign in ("[]", '{"hash": "x"}', "not json"):
        (tmp_path / "config.json").write_text(foreign)
        done = dafuse(*command(images, tmp_path))
        assert done.status == 2
        assert "config.json" in done.err
        assert (tmp_path / "config.json").read_text() == foreign


def test_stored_and_streamed_images_do_not_mix_in_one_run(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    streaming = command(images, out, "--memory_gb", "0", "--workers", "0")
    dafuse(*streaming, at=POINTS["in fusion"])
    done = dafuse(*command(images, out))
    assert done.status == 2
    assert "--memory-gb" in done.err


def test_from_python_the_same_configuration_is_saved(images: Path, tmp_path: Path) -> None:
    config = RunConfig(
        method={"name": "simplecil"}, data={"name": str(images)}, increment=3, device="cpu"
    )
    folder = run(replace(config, out=str(tmp_path / "run")))
    saved = json.loads((folder / "config.json").read_text())
    typed = ["--method", "simplecil", "--data", str(images), "--increment", "3", "--device", "cpu"]
    assert saved["hash"] == parse(typed).hash()
    with pytest.raises(DafuseError, match="no option alpha"):
        run(replace(config, method={"name": "simplecil", "alpha": 1}, out=str(tmp_path / "no")))


def test_errors_come_before_any_training(images: Path, tmp_path: Path) -> None:
    def refused(*arguments: str) -> str:
        done = dafuse("run", "--device", "cpu", "--out", str(tmp_path / "no"), *arguments)
        assert done.status == 2, done.err
        assert "Traceback" not in done.err
        assert len(done.err.strip().splitlines()) == 1, done.err
        return str(done.err)

    assert "more than the 6" in refused("--data", str(images), "--increment", "7")
    root = tmp_path / "case"
    for name in ("cat", "Cat"):
        (root / name).mkdir(parents=True)
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(root / name / "a.png")
    assert "differ only in case" in refused("--data", str(root))
    assert "does not exist" in refused("--data", str(images), "--weights", "no.safetensors")
    assert "--mehtod" in refused("--mehtod", "daf")
    assert "increment" in refused("--data", str(images), "--increment", "many")
