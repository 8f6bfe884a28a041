"""`dafuse bench`: turns, ratios, goals, what fails, and the file it writes; never the speed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import dafuse.commands.bench as command
from dafuse.benchmarks.bench_training import MatmulRate, forward_flops, training_flops
from dafuse.benchmarks.large_models import KnownClasses
from dafuse.benchmarks.plain_loop import plain_features
from dafuse.benchmarks.rounds import BenchRow, Goal, Measured, alternate, compared
from dafuse.benchmarks.setting import DEIT_TINY, Setting, network, random_images
from dafuse.cli import start
from dafuse.errors import DafuseError
from dafuse.heads.factored import FactoredHead
from helpers.small_networks import small_vit


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Everything, at the smallest sizes."""
    file = tmp_path_factory.mktemp("bench") / "bench.json"
    options = ["--quick", "--rounds", "2", "--device", "cpu", "--out", str(file)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["dafuse", "bench", *options])
        start("bench", options)
    return json.loads(file.read_text())


def test_variants_take_turns() -> None:
    asked: list[str] = []

    def variant(name: str, values: list[float]) -> Callable[[], float]:
        coming = iter(values)
        return lambda: (asked.append(name), next(coming))[1]

    variants = {"a": variant("a", [1, 2, 4]), "b": variant("b", [9, 3, 8, 4])}
    found = alternate(variants, rounds=3, warm_up=("b",))
    assert asked == ["b", "a", "b", "a", "b", "a", "b"]
    assert found["a"].values == [1, 2, 4]
    assert found["b"].values == [3, 8, 4]  # without its warm-up
    row = compared("b", "images/s", found["b"], ("a", found["a"]))
    assert row.ratios == (3, 4, 1)  # within each round; the ratio of medians would be 2
    assert row.ratio == 3


def test_a_variant_that_fails_leaves_the_others() -> None:
    calls = []

    def breaks() -> float:
        calls.append(1)
        raise RuntimeError("out of\nmemory")

    found = alternate({"good": lambda: 2.0, "bad": breaks}, rounds=3)
    assert found["good"].values == [2, 2, 2]
    assert found["bad"] == Measured(error="RuntimeError: out of memory")
    assert len(calls) == 1
    row = compared("good", "images/s", found["good"], ("bad", found["bad"]), goal=Goal("ratio", 10))
    assert (row.value, row.ratio, row.met) == (2, None, None)


@pytest.mark.parametrize(
    ("relation", "unit", "expected"),
    [
        ("speed-up", "images/s", 0.25),
        ("speed-up", "s", 4.0),  # a quarter of the time
        ("share", "s", 0.25),
        ("difference", "%", -6.0),
    ],
)
def test_relations(relation: Any, unit: str, expected: float) -> None:
    row = compared("own", unit, Measured([2.0]), ("other", Measured([8.0])), relation)
    assert row.ratio == expected


def test_goals_are_judged_by_ratio_or_value() -> None:
    def met(goal: Goal) -> bool | None:
        return compared("x", "images/s", Measured([6.0]), ("y", Measured([2.0])), goal=goal).met

    assert met(Goal("ratio", least=3)) is True
    assert met(Goal("ratio", least=3.1)) is False
    assert met(Goal("ratio", most=2.9)) is False
    assert met(Goal("value", least=5)) is True
    assert BenchRow("x", "s", Measured([1.0])).met is None


def test_operations_are_those_that_torch_counts() -> None:
    """A term beside the first MLP, trained, sends gradients through all later blocks."""
    vit = small_vit().timm
    beside = nn.Parameter(torch.zeros(vit.embed_dim))
    images = torch.randn(1, 3, 32, 32)
    kernel = torch.nn.attention.SDPBackend.MATH  # whose products are counted one by one
    with torch.nn.attention.sdpa_kernel(kernel), FlopCounterMode(display=False) as counter:
        feats = plain_features(vit, images, lambda layer, h: beside if layer == 0 else None)
        forward = counter.get_total_flops()
        feats.sum().backward()
    assert forward_flops(vit) == forward
    assert training_flops(vit) == counter.get_total_flops()


def test_operations_of_a_known_network() -> None:
    """DeiT-Tiny's 1.26 billion multiplications and additions, as is published of it."""
    vit = timm.create_model("deit_tiny_patch16_224", num_classes=0)
    assert forward_flops(vit) == pytest.approx(2 * 1.26e9, rel=0.01)
    assert MatmulRate(torch.device("cpu"), 64, 1).measure() > 0


def test_networks_are_built_without_weights() -> None:
    """They are the same each time."""
    first, again = network(DEIT_TINY), network(DEIT_TINY)
    assert first.sha256 == ""
    assert first.preprocessing.size == 224
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])
    assert len(random_images(3, 4).train) == 12


def test_every_benchmark_gives_rows(quick: dict[str, Any]) -> None:
    assert {row["benchmark"] for row in quick["rows"]} == set(command.BENCHMARKS)
    for row in quick["rows"]:
        assert row["error"] is None, row
        assert row["value"] is not None
        assert row["low"] <= row["value"] <= row["high"]
        if row["baseline"] is not None:
            assert row["ratio_low"] <= row["ratio"] <= row["ratio_high"]
        assert row["goal"] is None or isinstance(row["met"], bool)
    assert quick["format"] == 1
    assert quick["device"].startswith("cpu")
    assert quick["command"].startswith("dafuse bench --quick")
    assert {"dafuse", "torch", "timm"} <= quick["versions"].keys()


def test_ratios_are_taken_round_by_round(quick: dict[str, Any]) -> None:
    rows = {(row["benchmark"], row["what"]): row for row in quick["rows"]}
    plain, own = rows["training", "the plain loop"], rows["training", "dafuse"]
    ratios = [a / b for a, b in zip(own["rounds"], plain["rounds"], strict=True)]
    assert len(ratios) == 2
    assert own["ratio"] == pytest.approx(sum(ratios) / 2)
    assert (own["ratio_low"], own["ratio_high"]) == pytest.approx((min(ratios), max(ratios)))


def test_what_is_kept_does_not_grow(quick: dict[str, Any]) -> None:
    kept = [row for row in quick["rows"] if row["benchmark"] == "growth" and row["unit"] == "B"]
    assert len(kept) == 4  # two tasks, two kinds
    assert all(row["met"] for row in kept if row["goal"])
    memory = {row["what"]: row for row in quick["rows"] if row["benchmark"] == "memory"}
    full = memory["full, float32, kept for each class"]
    assert full["value"] == 4 * (192 + 192 * 193 / 2)
    assert memory["diagonal, float16, kept for each class"]["ratio"] == 2 * 2 * 192 / full["value"]


def test_a_model_of_many_classes_has_the_bytes_of_the_formula(quick: dict[str, Any]) -> None:
    rows = [row for row in quick["rows"] if row["benchmark"] == "scale"]
    found = {row["what"]: row for row in rows if row["part"] == "bytes" and row["baseline"]}
    assert {what.split(",")[0] for what in found} == {"records", "predict", "derived"}
    assert all(row["ratio"] == 1 and row["met"] for row in found.values())
    parts = {row["part"] for row in rows}
    assert {"a lesson, 32 columns", "predicting, 48 columns", "memory"} <= parts


@pytest.mark.parametrize("classes", [3, 2000])
def test_made_up_models_are_those_that_lessons_make(classes: int) -> None:
    """What is made by repeating records is what the method makes of all of them."""
    known = KnownClasses(24, classes)
    method = known.method()
    assert isinstance(method.head(), FactoredHead) == (classes == 2000)
    tested = method.learn(known.lesson(2))
    assert len(tested.labels_N) > 0
    assert method.head().classes == classes + 2
    if classes == 2000:
        kept, method.many.totals = method.many.require_totals(), None
        for name, array in method.many.require_totals().arrays().items():
            assert np.allclose(kept.arrays()[name], array, rtol=1e-9), name


def test_a_part_that_fails_is_said_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import dafuse.benchmarks.bench_fisher as fisher
    import dafuse.benchmarks.bench_memory as memory

    def breaks() -> list[BenchRow]:
        raise DafuseError("device cuda was asked for, but torch sees no CUDA device; try cpu")

    row = compared("works", "s", Measured([1.0, 3.0]))
    monkeypatch.setattr(fisher, "parts", lambda setting: {"on a GPU": breaks})
    monkeypatch.setattr(memory, "parts", lambda setting: {"here": lambda: [row]})
    file = tmp_path / "bench.json"
    with pytest.raises(DafuseError, match="1 of 2 rows failed: on a GPU"):
        start("bench", ["fisher", "memory", "--out", str(file)])
    bad, good = json.loads(file.read_text())["rows"]
    assert bad["error"].startswith("device cuda")
    assert bad["value"] is None
    assert (good["part"], good["value"], good["error"]) == ("here", 2.0, None)
    shown = capsys.readouterr().out
    assert "failed: device cuda" in shown
    assert "2.00 s (1.00 to 3.00)" in shown


@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU")
def test_without_the_device_the_cpu_is_still_measured() -> None:
    rows = command.measure("inference", Setting(device="cuda", rounds=1, quick=True))
    (_, missing), *others = rows
    assert "no CUDA device" in missing.measured.error
    assert {part for part, _ in others} == {"compact on the CPU"}
    assert all(row.value for _, row in others)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["trainig"], "no benchmark is called 'trainig'"),
        (["--rounds", "0"], "rounds must be 1"),
        (["memory", "--demo"], "--demo belongs to the benchmark cpu"),
        (["alignment", "--backbone", "x"], "--backbone is for training, fisher, inference, growth"),
        (["memory", "--classes", "10"], "--classes belongs to the benchmark scale"),
        (["scale", "--width", "4"], "width 16 or more"),
        (["scale", "--images", "100", "0"], "images must be 1 or more"),
        (["memory", "--out", "no folder/bench.json"], "cannot write no folder/bench.json"),
    ],
)
def test_bad_options_are_one_line(arguments: list[str], expected: str) -> None:
    with pytest.raises(DafuseError, match=expected):
        start("bench", arguments)
