"""Distil DeiT-Tiny (224 px) into dafuse's compact ViT (128 px), from random initialisation.

    python scripts/compact/distill.py --sharp photos.npz --small tiny-imagenet/train \
        --held-out held-out.npz --teacher deit_tiny_patch16_224.safetensors --out runs/compact

`--sharp`, `--small` and `--held-out` take folders of image files, .npz packs or .npy arrays
(scripts/compact/images.py). No label is used, but to measure with `--held-out`: it and `--sharp`
then hold the same number of each of ImageNet's classes, in its order. Without `--teacher`, timm
fetches DeiT-Tiny from its hub.

Two stages, `--block-steps` and `--whole-steps` long. First every half of a block gets the teacher's
inputs and imitates its outputs (scripts/compact/distances.py); then the whole student is held to
the teacher's class tokens, logits and patch tokens. Teacher and student see the same views ("a
patient and consistent teacher", arXiv 2106.05237). After `--minutes` or `--stop-after` steps the
script stops at a checkpoint in `--out`; the same command goes on from it.
"""

import argparse
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from checkpoint import Training
from distances import BlockByBlock, Whole
from evaluate import class_tokens, measure
from feed import SHARP_SIDE, SMALL_SIDE, Feed
from images import Images, load_images
from networks import STUDENT_PX, TEACHER_PX, make_student, make_teacher
from torch import Tensor, nn

LOG = "log.jsonl"
LOG_EVERY = 50  # steps
MEASURE_EVERY = 500  # steps
SAVE_EVERY = 60.0  # seconds
SCALE_STEP = 10**6  # a step that is never reached: its views give the scale of the distances


@dataclass(frozen=True)
class Stage:
    """A part of the training, with a schedule of its own."""

    name: str
    steps: int
    peak: float  # learning rate
    batch: int
    sizes: list[int]  # pixels at which the views are shown
    distances: BlockByBlock | Whole

    def learning_rate(self, step: int) -> float:
        """Linear warm-up over a twentieth of the stage, then a cosine to zero."""
        warm_up = max(1, min(self.steps // 20, 500))
        if step < warm_up:
            return self.peak * step / warm_up
        done = (step - warm_up) / max(1, self.steps - warm_up)
        return self.peak * 0.5 * (1 + math.cos(math.pi * done))


class Clock:
    """A time to stop: so many minutes or steps from now."""

    def __init__(self, minutes: float, steps: int) -> None:
        self.until, self.steps = time.monotonic() + 60 * minutes, steps

    def is_up(self) -> bool:
        return time.monotonic() > self.until or self.steps <= 0


class Exam:
    """Measures a student on photographs that are held out of the distillation."""

    def __init__(self, teacher: nn.Module, known: Images, held_out: Images) -> None:
        self.head, self.known, self.held_out = teacher.head, known, held_out
        self.theirs = class_tokens(teacher, TEACHER_PX, held_out)
        self.plain = make_student().to(held_out.sizes_N2.device)  # nothing in it is compiled

    def __call__(self, student: nn.Module) -> dict[str, float]:
        self.plain.load_state_dict(student.state_dict())
        return measure(self.plain, STUDENT_PX, self.head, self.theirs, self.known, self.held_out)


def distil(args: argparse.Namespace) -> None:
    clock = Clock(args.minutes, args.stop_after)
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    args.out.mkdir(parents=True, exist_ok=True)
    sharp = load_images(args.sharp, SHARP_SIDE, device)
    small = load_images(args.small, SMALL_SIDE, device)
    print(f"{len(sharp)} sharp and {len(small)} small images", flush=True)
    student = make_student().to(device)
    training = Training(student, args.out)
    training.go_on()
    stages = make_stages(args, student, device)
    exam = None
    if args.held_out:
        held_out = load_images(args.held_out, SHARP_SIDE, device)
        exam = Exam(make_teacher(args.teacher, TEACHER_PX).to(device), sharp, held_out)
    for stage in stages[training.stage :]:
        run_stage(stage, training, Feed(sharp, small, stage.batch, args.seed), exam, clock)
        if training.step < stage.steps:
            training.save()
            print(f"stopped at step {training.step} of {stage.steps} of stage {stage.name}:")
            print("go on with the same command")
            return
        training.begin_next_stage()


def make_stages(args: argparse.Namespace, student: nn.Module, device: torch.device) -> list[Stage]:
    """Block by block with the teacher at the student's size, then whole with it at its own."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    sizes = STUDENT_PX, TEACHER_PX
    near, far = (make_teacher(args.teacher, px).to(device, dtype) for px in sizes)
    half = args.batch // 2
    blocks, whole = BlockByBlock(student, near), Whole(student, far)
    return [
        Stage("blocks", args.block_steps, args.block_lr, half, [STUDENT_PX], blocks),
        Stage("whole", args.whole_steps, args.lr, args.batch, [STUDENT_PX, TEACHER_PX], whole),
    ]


def run_stage(
    stage: Stage, training: Training, feed: Feed, exam: Exam | None, clock: Clock
) -> None:
    """Train to the stage's end, or until the time is up."""
    on_gpu = feed.device.type == "cuda"
    stage.distances.measure(feed(SCALE_STEP, stage.sizes)[-1])
    if on_gpu:
        feed.compile()
        stage.distances.compile()
    weights = torch.tensor(stage.distances.weights, device=feed.device)
    window: list[Tensor] = []
    begun = saved = time.monotonic()
    while training.step < stage.steps and not clock.is_up():
        lr = stage.learning_rate(training.step + 1)
        views = feed(training.step, stage.sizes)
        with torch.autocast(feed.device.type, torch.bfloat16, enabled=on_gpu):
            distances = stage.distances(*views)
        training.take_step((weights * distances).sum(), lr)
        window.append(distances.detach())
        clock.steps -= 1
        if training.step % LOG_EVERY and training.step < stage.steps:
            continue
        line = describe(stage, training, window, lr, time.monotonic() - begun)
        if exam and (training.step % MEASURE_EVERY == 0 or training.step == stage.steps):
            line |= exam(training.student)
        with (training.checkpoint.with_name(LOG)).open("a") as log:
            print(json.dumps(line), file=log)
        print(json.dumps(line), flush=True)
        window, begun = [], time.monotonic()
        if begun - saved > SAVE_EVERY:
            training.save()
            saved = begun


def describe(
    stage: Stage, training: Training, window: list[Tensor], lr: float, seconds: float
) -> dict[str, float | str]:
    """Describe the steps since the last line of the log, or stop where they went wrong."""
    means = torch.stack(window).mean(0).tolist()
    if not math.isfinite(sum(means)):
        raise SystemExit("the distances are no longer finite: lower the learning rate")
    training.seconds += seconds
    line = {
        "stage": stage.name,
        "step": training.step,
        "images": training.step * stage.batch,
        "seconds": round(training.seconds, 1),
        "images_per_s": round(len(window) * stage.batch / seconds),
        "lr": float(f"{lr:.3g}"),
    }
    return line | {n: round(mean, 4) for n, mean in zip(stage.distances.names, means, strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--sharp", type=Path, nargs="+", required=True, help="sharp images")
    add("--small", type=Path, nargs="+", required=True, help="images of 64 pixels")
    add("--held-out", type=Path, nargs="*", default=[], help="photographs to measure with")
    add("--teacher", type=Path, help="DeiT-Tiny as safetensors; by default from timm's hub")
    add("--out", type=Path, required=True, help="folder for weights, checkpoint and log")
    add("--minutes", type=float, default=60.0, help="stop at a checkpoint after so long")
    add("--stop-after", type=int, default=10**9, help="stop at a checkpoint after so many steps")
    add("--block-steps", type=int, default=1500)
    add("--whole-steps", type=int, default=7200)
    add("--batch", type=int, default=2048, help="of the second stage; half as many in the first")
    add("--block-lr", type=float, default=2e-3, help="peak learning rate of the first stage")
    add("--lr", type=float, default=6e-4, help="peak learning rate of the second stage")
    add("--seed", type=int, default=0)
    distil(parser.parse_args())


if __name__ == "__main__":
    main()
