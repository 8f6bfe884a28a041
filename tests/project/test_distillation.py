"""The script that distilled the embedded network stops at a checkpoint and goes on from it."""

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from helpers.places import ROOT

SCRIPTS = ROOT / "scripts" / "compact"
NAME = "dafuse_compact_patch16_128.safetensors"


@pytest.fixture
def sources(tmp_path: Path) -> list[str]:
    """Arguments that name a few images of noise, and a teacher that knows nothing."""
    noise = np.random.default_rng(0).integers(0, 255, (6, 64, 64, 3), dtype=np.uint8)
    np.save(tmp_path / "small.npy", noise)
    files = [io.BytesIO() for _ in noise]
    for file, image in zip(files, noise, strict=True):
        Image.fromarray(image).resize((200, 150)).save(file, "JPEG")
    blob = np.frombuffer(b"".join(f.getvalue() for f in files), np.uint8)
    lengths = np.array([len(f.getvalue()) for f in files])
    np.savez(tmp_path / "sharp.npz", blob=blob, lengths=lengths)
    torch.manual_seed(0)
    teacher = timm.create_model("deit_tiny_patch16_224")
    save_file(teacher.state_dict(), tmp_path / "teacher.safetensors")
    given = {"sharp": "sharp.npz", "small": "small.npy", "teacher": "teacher.safetensors"}
    return [text for name, file in given.items() for text in (f"--{name}", str(tmp_path / file))]


def distil(sources: list[str], *runs: list[str]) -> str:
    """Run the script several times in one process, on tiny batches."""
    few = ["--batch", "4", "--block-steps", "2", "--whole-steps", "2"]
    program = ["import sys", "from distill import main"]
    for run in runs:
        program += [f"sys.argv[1:] = {[*sources, *few, *run]!r}", "main()"]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(program)], cwd=SCRIPTS, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_distillation_that_was_stopped_ends_with_the_same_bits(
    sources: list[str], tmp_path: Path
) -> None:
    whole, parts = (["--out", str(tmp_path / name)] for name in ("whole", "parts"))
    stop = [*parts, "--stop-after", "1"]
    said = distil(sources, whole, stop, [*parts, "--stop-after", "2"], parts)
    assert "stopped at step 1 of 2 of stage blocks" in said
    assert "stopped at step 1 of 2 of stage whole" in said
    ours, theirs = (load_file(tmp_path / name / NAME) for name in ("whole", "parts"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    student = timm.create_model("vit_tiny_patch16_224", img_size=128, num_classes=0)
    student.load_state_dict(ours)
    assert all(tensor.dtype == torch.float16 for tensor in ours.values())


def test_a_folder_without_images_is_refused(sources: list[str], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    found = subprocess.run(
        [sys.executable, "distill.py", *sources, "--small", tmp_path / "empty", "--out", tmp_path],
        cwd=SCRIPTS,
        capture_output=True,
        text=True,
    )
    assert found.stderr.strip() == f"there are no images in {tmp_path / 'empty'}"


def test_the_published_log_draws_a_curve(tmp_path: Path) -> None:
    log = SCRIPTS.parents[1] / "docs" / "figures" / "distill_curve.jsonl"
    drawn, teacher = tmp_path / "curve.svg", ["--teacher", "63.4", "58.9"]
    subprocess.run(
        [sys.executable, "curve.py", log, drawn, *teacher], cwd=SCRIPTS, check=True, timeout=120
    )
    assert "<svg" in drawn.read_text()
    (tmp_path / "log.jsonl").write_text('{"stage": "blocks", "step": 50, "images": 51200}\n')
    refused = subprocess.run(
        [sys.executable, "curve.py", tmp_path / "log.jsonl", drawn, *teacher],
        cwd=SCRIPTS,
        capture_output=True,
        text=True,
    )
    assert "was it made without --held-out?" in refused.stderr
