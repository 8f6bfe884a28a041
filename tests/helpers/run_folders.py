"""Made-up run folders, as the engine writes them, for the tests of the report."""

import json

import numpy as np

from dafuse.files import read_json
from dafuse.sealed import SEAL, write_sealed

NASTY = "<script>alert('a & b')</script> 100%_$x^2$ \\LaTeX{} | \"q\""


def make_run(
    folder,
    *,
    method="daf",
    seed=1993,
    tasks=4,
    done=None,
    size=5,
    images=20,
    diagnosed=None,
    epochs=3,
    decay=4.0,
    untested=(),
    names=None,
    skipped=(),
    declares=(),
    others=(),
    **changes,
):
    """A run folder as the engine writes it, with plausible numbers."""
    rng = np.random.default_rng(seed)
    done = tasks if done is None else done
    diagnosed = method == "daf" if diagnosed is None else diagnosed
    counts = [0 if j in untested else size * images for j in range(tasks)]
    correct, total = [], []
    for t in range(done):
        share = [0.95 - 0.01 * decay * (t - j) - 0.004 * t for j in range(t + 1)]
        total.append(counts[: t + 1])
        correct.append(
            [
                int(rng.binomial(n, min(max(p, 0.05), 1)))
                for n, p in zip(total[t], share, strict=True)
            ]
        )
    seen = done * size
    confusion = _confusion(rng, size, correct[-1] if done else [], counts, seen)
    config = {
        "method": {"name": method, "alpha": 1.25, "rule": "dynamic", **changes.pop("options", {})},
        "data": {"name": "cifar100", "root": "/data"},
        "backbone": "deit_tiny_patch16_224.fb_in1k",
        "increment": size,
        "order": "seed",
        "seed": seed,
        "precision": "32-true",
    }
    if method != "daf":
        del config["method"]["alpha"], config["method"]["rule"]
    config.update(changes)
    results = {
        "format": 1,
        "status": "finished" if done == tasks else "running",
        "tasks_total": tasks,
        "classes": names or [f"class {c}" for c in range(tasks * size)],
        "task_sizes": [size] * tasks,
        "correct": correct,
        "total": total,
        "confusion": confusion.tolist(),
        "skipped": list(skipped),
        "method": {
            "passes_per_prediction": 1,
            "keeps_images": False,
            "assumes": "nothing about the future",
            **dict(declares),
        },
        "tasks": [_task(rng, t, epochs, sum(counts[: t + 1]), diagnosed) for t in range(done)],
    }
    if others:  # each a bit worse than the one before
        results["others"] = {
            way: [[max(right - k, 0) for right in row] for row in correct]
            for k, way in enumerate(others, 1)
        }
    provenance = {
        "format": 1,
        "command": f"dafuse run {method} --seed {seed}",
        "started": "2026-11-15T10:00:00+00:00",
        "versions": {"dafuse": "0.1.0", "torch": "2.11.0"},
        "device": "cpu (2 threads)",
        "weights": {"tag": config["backbone"], "sha256": "ab" * 32, "source": "package"},
        "data_fingerprint": "cd" * 16,
        "images": {"train": 50000, "test": 10000},
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (
        ("config", {"format": 1, "hash": "ef" * 32, "config": config}),
        ("provenance", provenance),
        ("results", results),
    ):
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def _confusion(rng, size, correct, counts, seen):
    """Counts [seen, seen] that add up to those of the tasks."""
    rows = []
    for right, count in zip(correct, counts[: len(correct)], strict=True):
        is_right = rng.permutation(np.arange(count) < right).reshape(size, -1)
        for each in is_right:
            row = rng.multinomial((~each).sum(), np.full(seen - 1, 1 / (seen - 1)))
            rows.append(np.insert(row, len(rows), each.sum()))
    return np.array(rows)


def put_counts(content, correct, total):
    """Replace the counts in a run's results; the confusion, which would not fit, is left out."""
    content.update(correct=correct, total=total, confusion=[])


def _task(rng, t, epochs, tested, diagnosed):
    task = {
        "task": t,
        "seconds": {
            "train": 10.0 + t, "fisher": 0.5, "fuse": 0.01, "statistics": 1.0,
            "align": 0.5 * t, "evaluate": 0.5 * (t + 1),
        },
        "images": {"train": 1000 * epochs, "fisher": 1000, "evaluate": tested},
        "kept_bytes": {
            "modules": 1_200_000, "statistics": 740_000 * (t + 1), "classifier": 3840 * (t + 1),
            "exemplars": 0,
        },
        "loss": [float(2.5 * 0.6**e + 0.3 + rng.uniform(0, 0.05)) for e in range(epochs)],
        "diagnosis": {},
    }  # fmt: skip
    if diagnosed:
        spread = np.sort(np.clip(rng.normal(0.38, 0.08, (12, 200)), 0.001, 0.499), axis=1)
        task["diagnosis"] = {
            "beta": [
                {
                    "layer": layer,
                    "mean": float(row.mean()),
                    "quantiles": {
                        str(q): float(np.quantile(row, q / 100)) for q in (5, 25, 50, 75, 95)
                    },
                }
                for layer, row in enumerate(spread)
            ],
            "clipped_low": 0.02,
            "clipped_high": 0.31 + 0.01 * t,
            "mean_abs_gradient_over_displacement": float(1.2 / (t + 1)),
            "median_abs_gradient_over_displacement": float(0.2 / (t + 1)),
            "moved": {"distance": 0.8 / (t + 1), "relative": 0.12 / (t + 1)},
            "bound": {
                "empirical_risk": 0.12 + 0.01 * t,
                "init_sq_distance": 3.4 - 0.1 * t,
                "global_sq_distance": 1.2 - 0.05 * t,
            },
        }
    return task


def add_measurement(folder, tasks=(1, 3), planned=None):
    """Add measured approximations of DAF to a recorded run, with plausible numbers."""
    rng = np.random.default_rng(1)
    tensors = ("down.weight", "down.bias", "up.weight", "up.bias")
    pairs = ("fisher_signs", "fisher_exact", "signs_exact", "rule_exact", "batch_sample")
    names = ("entries", "rank_correlation", "cosine", "ratio_of_sums", "negative")
    shares = [k / 10 for k in range(11)]

    def one(t):
        numbers = dict(zip(names, (40, 0.5 + 0.1 * t, 0.8, 0.25, 0.125), strict=True))
        bends = {"true": 0.2, "fisher": 0.1, "diagonal": 0.3, "hessian": 0.19, "rule": 500.0}
        return {
            "task": t,
            "images": 64,
            "agreement": {pair: dict.fromkeys(("all", *tensors), numbers) for pair in pairs},
            "path": {"shares": shares}
            | {model: [0.4 + bend * s**2 for s in shares] for model, bend in bends.items()},
            "sampled": {
                "fisher": {key: rng.lognormal(size=9).tolist() for key in tensors},
                "exact": {key: (rng.lognormal(size=9) - 0.3).tolist() for key in tensors},
            },
            "seconds": 12.0,
        }

    content = {
        "format": 1,
        "options": {"tasks": 2, "images": 64, "probes": 8, "coordinates": 9},
        "planned": list(planned or tasks),
        "tasks": [one(t) for t in tasks],
    }
    (folder / "approximations.json").write_text(json.dumps(content))
    return folder


def rewrite(folder, name, change):
    """Change a JSON file as its writer might have: a sealed one is sealed again."""
    content = read_json(folder / name)
    sealed = content.pop(SEAL, None) is not None
    change(content)
    if sealed:
        write_sealed(folder / name, content)
    else:
        (folder / name).write_text(json.dumps(content))
