"""Distil DeiT-Tiny (224 px) into dafuse's compact ViT (64 px, patch 8), from random initialisation.

    python scripts/distill_compact.py --images tiny-imagenet/train \
        --teacher deit_tiny_patch16_224.safetensors --out runs/compact --minutes 9

`--images` is a folder tree of class folders (labels are not used) or a uint8 .npy [N, 64, 64, 3].
Without `--teacher`, timm fetches DeiT-Tiny from its hub. The number of steps follows from the
measured speed and `--minutes`; `--steps` fixes it instead. `--out` receives the weights (float16,
timm's key names, no head; renewed every minute) and distill_loss.jsonl, a line every 50 steps.

Teacher and student see the same view of an image, each at its own size: crop, flip, colour, loss of
resolution, mixup and cutmix included (a "patient and consistent" teacher, arXiv 2106.05237). The
student is held to the teacher's class token, its logits (the teacher's own frozen head on the
student's class token) and its patch tokens at three depths.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torchvision import datasets, transforms

SOURCE_PX, STUDENT_PX, TEACHER_PX = 64, 64, 224
GRID = 8  # the student's patches a side, to which the teacher's 14 are pooled
DEPTHS = (4, 8, 11)  # blocks whose patch tokens are matched; after the last, DeiT uses none
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
RESOLUTIONS = (64, 64, 64, 48, 40, 32, 32, 24)  # each image is first reduced to one of these
SMALLEST_CROP, JITTER = 0.1, 0.3  # share of the area; strength of the changes of colour
LOSS_WEIGHTS = (2.0, 1.0, 1.0)  # class token, logits, patch tokens
WEIGHT_DECAY = 0.05
HELD_OUT = 1024  # about as many images are kept for the similarity reported with checkpoints
LOG_EVERY = 50
METADATA = {
    "architecture": "timm vit_tiny_patch16_224, img_size=64, patch_size=8, num_classes=0",
    "source": "dafuse scripts/distill_compact.py: distilled from DeiT-Tiny on Tiny-ImageNet train",
    "licence": "Apache-2.0",
}


class Views(NamedTuple):
    """How each image of a batch is shown; every field but the images is a random draw."""

    images_NCHW: Tensor  # float in [0, 1], 64 px
    box_N4: Tensor  # top, left, height, width of the crop in source pixels
    flip_N: Tensor  # bool
    resolution_N: Tensor  # index into RESOLUTIONS
    colour_N3: Tensor  # factors of brightness, contrast, saturation
    share_N: Tensor  # how much of the image itself, rather than its neighbour, is shown
    cut_N: Tensor  # bool: the neighbour comes as a box (cutmix) rather than as a veil (mixup)
    centre_N2: Tensor  # centre of that box, in [0, 1]


def load_images(source: Path) -> Tensor:
    """uint8 [N, 64, 64, 3] from a .npy, or from every image file of a folder tree."""
    if source.suffix == ".npy":
        return torch.from_numpy(np.load(source))
    bicubic = transforms.InterpolationMode.BICUBIC
    fit = transforms.Resize(SOURCE_PX, bicubic), transforms.CenterCrop(SOURCE_PX)
    tree = datasets.ImageFolder(source, transforms.Compose([*fit, np.asarray]))
    with ThreadPoolExecutor() as pool:
        samples = pool.map(tree.__getitem__, range(len(tree)))
        return torch.from_numpy(np.stack([image for image, _ in samples]))


def random_views(images: Tensor) -> Views:
    """One random view of each image: a third each as it is, as mixup and as cutmix."""
    draw = torch.rand(14, len(images), device=images.device)
    area = SOURCE_PX**2 * (SMALLEST_CROP + (1 - SMALLEST_CROP) * draw[0])
    ratio = torch.exp((2 * draw[1] - 1) * math.log(4 / 3))
    sides_2N = torch.stack([area * ratio, area / ratio]).sqrt().clamp(max=SOURCE_PX)
    return Views(
        images_NCHW=images.permute(0, 3, 1, 2).float() / 255,
        box_N4=torch.cat([draw[2:4] * (SOURCE_PX - sides_2N), sides_2N]).T,
        flip_N=draw[4] < 0.5,
        resolution_N=(draw[5] * len(RESOLUTIONS)).long().clamp(max=len(RESOLUTIONS) - 1),
        colour_N3=(1 + JITTER * (2 * draw[6:9] - 1)).T,
        share_N=torch.where(draw[9] < 1 / 3, 1.0, draw[10]),
        cut_N=draw[11] < 0.5,
        centre_N2=draw[12:14].T,
    )


def endless_views(images: Tensor, batch: int) -> Iterator[Views]:
    while True:
        order = torch.randperm(len(images), device=images.device)
        for chosen in order.split(batch)[: len(images) // batch]:
            yield random_views(images[chosen])


def resampling(start_N: Tensor, length_N: Tensor, out: int, source: int = SOURCE_PX) -> Tensor:
    """Bicubic resampling of [start, start + length) to `out` pixels: matrices [N, out, source]."""
    step_N = length_N / out
    outs, sources = (torch.arange(size, device=start_N.device) for size in (out, source))
    at_NO = start_N[:, None] + (outs + 0.5) * step_N[:, None] - 0.5
    far = (at_NO[..., None] - sources).abs()
    far = far / step_N.clamp(min=1)[:, None, None]  # a wider kernel when shrinking: antialiasing
    near, rim = 1.5 * far**3 - 2.5 * far**2 + 1, -0.5 * far**3 + 2.5 * far**2 - 4 * far + 2
    kernel = torch.where(far < 1, near, torch.where(far < 2, rim, 0.0))
    return kernel / kernel.sum(-1, keepdim=True)


def there_and_back(pixels: int) -> Tensor:
    """The matrix [1, 64, 64] that shrinks a side to `pixels` and enlarges it again."""
    start, full, small = torch.tensor([[0.0], [SOURCE_PX], [pixels]])
    return resampling(start, small, SOURCE_PX, pixels) @ resampling(start, full, pixels)


def prepare(views: Views, bank_R: Tensor) -> Tensor:
    """The part of a view that is the same at every size: loss of resolution and colour."""
    blur_N1 = bank_R[views.resolution_N][:, None]
    brightness, contrast, saturation = views.colour_N3.T[:, :, None, None, None]
    x = blur_N1 @ views.images_NCHW @ blur_N1.mT * brightness
    x = torch.lerp(x.mean((1, 2, 3), keepdim=True), x, contrast)
    return torch.lerp(x.mean(1, keepdim=True), x, saturation).clamp(0, 1)


def normalise(x_NCHW: Tensor) -> Tensor:
    return torch.stack([(x_NCHW[:, c] - MEAN[c]) / STD[c] for c in range(3)], 1)


def render(x: Tensor, views: Views, px: int) -> Tensor:
    """The batch as a model of `px` pixels sees it: crop, flip, mix with the neighbour."""
    top, left, height, width = views.box_N4.T
    rows, columns = resampling(top, height, px), resampling(left, width, px)
    columns = torch.where(views.flip_N[:, None, None], columns.flip(1), columns)
    x = (rows[:, None] @ x @ columns[:, None].mT).clamp(0, 1)
    cut_N11, share_N11 = views.cut_N[:, None, None], views.share_N[:, None, None]
    at_P = (torch.arange(px, device=x.device) + 0.5) / px
    inside_N2P = (at_P - views.centre_N2[..., None]).abs() < (1 - share_N11).sqrt() / 2
    outside_NHW = ~(inside_N2P[:, 0, :, None] & inside_N2P[:, 1, None, :])
    share_NHW = torch.where(cut_N11, outside_NHW.float(), share_N11)
    return normalise(torch.lerp(x.roll(1, 0), x, share_NHW[:, None]))


def plain_view(images: Tensor, px: int) -> Tensor:
    """The test transform: resize to 256/224 of `px`, centre crop."""
    side = torch.tensor([SOURCE_PX * 224 / 256], device=images.device)
    crop = resampling((SOURCE_PX - side) / 2, side, px)
    return normalise((crop @ (images.permute(0, 3, 1, 2).float() / 255) @ crop.mT).clamp(0, 1))


def run(vit: nn.Module, images: Tensor) -> list[Tensor]:
    """Class token [N, D] after the final norm, then patch tokens [N, D, 8, 8] at each depth."""
    final, maps = vit.forward_intermediates(images, indices=[depth - 1 for depth in DEPTHS])
    maps = [x if x.shape[-1] == GRID else F.adaptive_avg_pool2d(x, GRID) for x in maps]
    return [final[:, 0], *maps]


class Distillation:
    """A frozen teacher, a student, and the distances between what they say of the same views."""

    def __init__(self, teacher_weights: Path | None, device: torch.device) -> None:
        teacher = timm.create_model("deit_tiny_patch16_224", pretrained=teacher_weights is None)
        if teacher_weights:
            teacher.load_state_dict(load_file(teacher_weights))
        teacher = teacher.eval().requires_grad_(False).to(device)
        self.head = teacher.head.weight, teacher.head.bias
        teacher.reset_classifier(0)
        self.teacher = teacher.to(torch.bfloat16)
        shape = {"img_size": STUDENT_PX, "patch_size": STUDENT_PX // GRID, "num_classes": 0}
        self.student = timm.create_model("vit_tiny_patch16_224", **shape).to(device)
        self.bank_R = torch.cat([there_and_back(pixels) for pixels in RESOLUTIONS]).to(device)
        if device.type == "cuda":
            parts = self.see, self.teach, self.compare
            self.see, self.teach, self.compare = (torch.compile(part) for part in parts)

    def see(self, views: Views) -> tuple[Tensor, Tensor]:
        x = prepare(views, self.bank_R)
        return render(x, views, STUDENT_PX), render(x, views, TEACHER_PX).bfloat16()

    @torch.no_grad()
    def teach(self, images: Tensor) -> list[Tensor]:
        return run(self.teacher, images)

    def look(self, images: Tensor) -> list[Tensor]:
        with torch.autocast(images.device.type, torch.bfloat16):
            return run(self.student, images)

    def measure(self, samples: list[list[Tensor]]) -> None:
        """The teacher's deviation in each channel, so that all channels weigh the same."""
        outputs = [torch.cat(parts).float() for parts in zip(*samples, strict=True)]
        self.std = [x.std([d for d in range(x.ndim) if d != 1], keepdim=True) for x in outputs]

    def compare(self, images: Tensor, theirs: list[Tensor]) -> Tensor:
        """The three distances [3]: class token, logits (KL divergence), patch tokens."""
        ours, theirs = ([x.float() for x in xs] for xs in (self.look(images), theirs))
        log_p, log_q = (F.linear(x[0], *self.head).log_softmax(1) for x in (theirs, ours))
        kl = F.kl_div(log_q, log_p, log_target=True, reduction="batchmean")
        gaps = [((ours[i] - theirs[i]) / std).square().mean() for i, std in enumerate(self.std)]
        return torch.stack([gaps[0], kl, torch.stack(gaps[1:]).mean()])

    @torch.no_grad()
    def similarity(self, images: Tensor) -> float:
        """Mean cosine between the two class tokens under the test transform."""
        ours = self.look(plain_view(images, STUDENT_PX))[0]
        theirs = run(self.teacher, plain_view(images, TEACHER_PX).bfloat16())[0]
        return F.cosine_similarity(ours.float(), theirs.float()).mean().item()

    def save(self, path: Path) -> None:
        tensors = {name: t.half().cpu() for name, t in self.student.state_dict().items()}
        partial = path.with_suffix(".partial")
        save_file(tensors, partial, METADATA | {"date": time.strftime("%Y-%m-%d")})
        partial.replace(path)


def make_optimizers(student: nn.Module) -> list[torch.optim.Optimizer]:
    """Muon for the blocks' matrices, AdamW without decay for everything else."""
    matrices = [p for p in student.blocks.parameters() if p.ndim == 2]
    others = [p for p in student.parameters() if all(p is not m for m in matrices)]
    muon = torch.optim.Muon(matrices, weight_decay=WEIGHT_DECAY, adjust_lr_fn="match_rms_adamw")
    return [torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0), muon]


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Linear warm-up over a twentieth of the run, then a cosine to zero."""
    warm_up = max(1, steps // 20)
    cosine = 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up)))
    return peak * (step / warm_up if step < warm_up else cosine)


def train(args: argparse.Namespace) -> None:
    begun = time.monotonic()
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    args.out.mkdir(parents=True, exist_ok=True)
    images = load_images(args.images).to(device)
    held_out_N = torch.arange(len(images), device=device) % max(2, len(images) // HELD_OUT) == 0
    held_out, images = images[held_out_N], images[~held_out_N]
    pair = Distillation(args.teacher, device)
    optimizers = make_optimizers(pair.student)
    stream = endless_views(images, args.batch)
    pair.measure([pair.teach(pair.see(next(stream))[1]) for _ in range(4)])

    def learn(lr: float) -> Tensor:
        small, large = pair.see(next(stream))
        distances = pair.compare(small, pair.teach(large))
        sum(w * d for w, d in zip(LOSS_WEIGHTS, distances, strict=True)).backward()
        nn.utils.clip_grad_norm_(pair.student.parameters(), 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
            optimizer.zero_grad()
        return distances.detach()

    learn(0.0).sum().item()  # compiles
    tick = time.monotonic()
    torch.stack([learn(0.0) for _ in range(10)]).sum().item()  # .item() waits for the device
    seconds = (time.monotonic() - tick) / 10
    steps = args.steps or max(1, int((args.minutes * 60 - (time.monotonic() - begun)) / seconds))
    print(f"{args.batch / seconds:.0f} images/s; {steps} steps")

    saved, window = time.monotonic(), []
    with (args.out / "distill_loss.jsonl").open("w") as log:
        for step in range(1, steps + 1):
            lr = learning_rate(step, steps, args.lr)
            window.append(learn(lr))
            if step % LOG_EVERY and step < steps:
                continue
            cls, kl, tokens = torch.stack(window).mean(0).tolist()
            window, now = [], time.monotonic()
            line = {"step": step, "seconds": round(now - begun, 1), "lr": float(f"{lr:.3g}")}
            line["epochs"] = round(step * args.batch / len(images), 2)
            line |= {"cls": round(cls, 4), "kl": round(kl, 4), "tokens": round(tokens, 4)}
            if now - saved > 60 or step == steps:
                pair.save(args.out / "dafuse_compact_patch8_64.safetensors")
                saved, line["held_out_cosine"] = now, round(pair.similarity(held_out), 4)
            for file in (log, None):
                print(json.dumps(line), file=file, flush=True)
            assert math.isfinite(cls + kl + tokens), "the loss is no longer finite: lower --lr"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--images", type=Path, required=True, help="folder tree or uint8 .npy [N, 64, 64, 3]")
    add("--teacher", type=Path, help="DeiT-Tiny as safetensors; by default from timm's hub")
    add("--out", type=Path, required=True, help="folder for the weights and the loss curve")
    add("--minutes", type=float, default=9.0, help="wall time in all, compilation included")
    add("--steps", type=int, help="number of steps, instead of --minutes")
    add("--batch", type=int, default=1024)
    add("--lr", type=float, default=2e-3, help="peak learning rate")
    add("--seed", type=int, default=0)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
