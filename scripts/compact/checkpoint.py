"""Checkpoints of a distillation: the student, its optimisers, and how far it is."""

import json
from pathlib import Path

import torch
from networks import weights_of
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

WEIGHT_DECAY = 0.02
METADATA = {
    "architecture": "timm vit_tiny_patch16_224, img_size=128, num_classes=0",
    "source": "dafuse scripts/compact/distill.py: distilled from DeiT-Tiny",
    "licence": "Apache-2.0",
}


class Training:
    """A student in training, in a folder that holds its checkpoint and its weights so far."""

    def __init__(self, student: nn.Module, out: Path) -> None:
        self.student = student
        self.weights = out / "dafuse_compact_patch16_128.safetensors"
        self.checkpoint = out / "checkpoint.safetensors"
        self.stage, self.step, self.seconds = 0, 0, 0.0
        self.optimizers = make_optimizers(student)

    def take_step(self, loss: Tensor, lr: float) -> None:
        loss.backward()
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
            optimizer.zero_grad()
        self.step += 1

    def begin_next_stage(self) -> None:
        self.stage, self.step = self.stage + 1, 0
        self.optimizers = make_optimizers(self.student)
        self.save()

    def save(self) -> None:
        tensors = {f"student/{name}": t for name, t in self.student.state_dict().items()}
        for number, optimizer in enumerate(self.optimizers):
            for index, state in optimizer.state_dict()["state"].items():
                tensors |= {f"{number}/{index}/{key}": t for key, t in state.items()}
        at = {"stage": self.stage, "step": self.step, "seconds": self.seconds}
        about = {name: json.dumps(value) for name, value in at.items()}
        tensors = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
        _write(self.checkpoint, tensors, about)
        _write(self.weights, weights_of(self.student), METADATA)

    def go_on(self) -> None:
        """Take up the checkpoint, where there is one."""
        if not self.checkpoint.is_file():
            return
        with safe_open(self.checkpoint, "pt") as file:
            about = {name: json.loads(value) for name, value in file.metadata().items()}
        self.stage, self.step, self.seconds = about["stage"], about["step"], about["seconds"]
        tensors = load_file(self.checkpoint)
        student = {n.removeprefix("student/"): t for n, t in tensors.items() if n[0] == "s"}
        self.student.load_state_dict(student)
        for number, optimizer in enumerate(self.optimizers):
            state: dict[int, dict[str, Tensor]] = {}
            for name, tensor in tensors.items():
                if name.startswith(f"{number}/"):
                    _, index, key = name.split("/")
                    state.setdefault(int(index), {})[key] = tensor
            optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def make_optimizers(student: nn.Module) -> list[torch.optim.Optimizer]:
    """Muon for matrices, AdamW without decay for everything else."""
    matrices = [p for p in student.parameters() if p.ndim == 2]
    others = [p for p in student.parameters() if p.ndim != 2]
    muon = torch.optim.Muon(matrices, weight_decay=WEIGHT_DECAY, adjust_lr_fn="match_rms_adamw")
    return [torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0), muon]


def _write(path: Path, tensors: dict[str, Tensor], about: dict[str, str]) -> None:
    partial = path.with_suffix(".partial")
    save_file(tensors, partial, about)
    partial.replace(path)
