"""Figures: complete, repeatable, and with names that can be read."""

import math
import re
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from dafuse.errors import DafuseError
from dafuse.report import comparisons, run_figures, tradeoffs
from dafuse.report.drawing import NEAR, NothingToDraw, canvas, moved_apart, place_labels
from dafuse.report.measures import measures
from dafuse.report.runs import find_runs, load_run
from dafuse.report.tradeoffs import efficiency, efficiency_caption
from helpers.run_folders import make_run, rewrite


def test_figures_are_complete_svg_without_global_state(tmp_path):
    run = load_run(make_run(tmp_path / "run"))
    drawings = [
        comparisons.accuracy_curves([run]), run_figures.accuracy_matrix(run),
        run_figures.confusion(run),
        run_figures.beta_per_layer(run), run_figures.fusion_diagnosis(run),
        run_figures.bound_terms(run), run_figures.seconds_per_phase(run),
        run_figures.training_loss(run),
    ]  # fmt: skip
    drawn = [drawing.svg() for drawing in drawings]
    for svg in drawn:
        assert svg.startswith('<svg role="img" aria-label="')
        assert svg.endswith("</svg>")
        assert "<text" in svg  # letters, not outlines
        assert "DejaVu" not in svg  # and the reader's own
    assert "matplotlib.pyplot" not in sys.modules
    assert drawings[1].svg() == drawn[1]  # the same numbers give the same bytes


def test_nothing_recorded_draws_nothing(tmp_path):
    run = load_run(make_run(tmp_path / "run", method="simplecil", epochs=0))
    for draw in (
        run_figures.beta_per_layer, run_figures.fusion_diagnosis, run_figures.bound_terms,
        run_figures.training_loss,
    ):  # fmt: skip
        with pytest.raises(NothingToDraw):
            draw(run)
    rewrite(run.folder, "results.json", lambda content: content.update(confusion=[]))
    with pytest.raises(NothingToDraw):
        run_figures.confusion(load_run(run.folder))


def test_most_confused_classes_come_in_pairs():
    counts = np.diag([9, 9, 9, 9, 9])
    counts[1, 4], counts[4, 1], counts[0, 2] = 3, 2, 4
    assert run_figures.most_confused(counts, most=2) == [1, 4]
    assert run_figures.most_confused(counts, most=4) == [0, 1, 2, 4]
    assert run_figures.most_confused(np.diag([9, 9])) == []


def test_labels_are_moved_apart_only_where_they_collide():
    assert moved_apart([90, 50, 10], 5) == [90, 50, 10]
    assert moved_apart([52, 50, 10], 6) == [54, 48, 10]
    placed = moved_apart([60, 59, 58.5, 50, 48], 4)
    assert all(a - b >= 4 - 1e-9 for a, b in pairwise(placed))
    assert sum(placed) == pytest.approx(60 + 59 + 58.5 + 50 + 48)


def test_curves_show_every_way_to_predict(tmp_path):
    make_run(tmp_path / "run", declares={"prediction": "nme"}, others=["cnn"])
    drawn = comparisons.accuracy_curves(find_runs([tmp_path])).svg()
    assert re.search(r"daf \[nme\] ends at [\d.]+ %.*daf \[cnn\] ends at [\d.]+ %", drawn)


def test_readme_picture_is_1200_pixels_wide(tmp_path):
    from PIL import Image

    for method in ("daf", "simplecil"):
        make_run(tmp_path / method, method=method)
    comparisons.accuracy_curves(find_runs([tmp_path])).write_png(tmp_path / "curve.png")
    with Image.open(tmp_path / "curve.png") as picture:
        assert picture.width == 1200


# ---- accuracy against speed


def make_fast_and_slow(folder, methods=("daf", "tuna", "ease")):
    for number, method in enumerate(methods, 1):
        run = make_run(folder / method, method=method)

        def at_speed(content, number=number):
            for task in content["tasks"]:
                task["seconds"] = {"train": 10.0 * number, "evaluate": 0.5 * number}
                task["images"] = {"train": 3000, "evaluate": 100}

        rewrite(run, "results.json", at_speed)
    return folder


def untrain(content):
    for task in content["tasks"]:
        del task["images"]["train"]


def test_efficiency_needs_three_methods_with_both_speeds(tmp_path):
    make_fast_and_slow(tmp_path)
    make_run(tmp_path / "daf2", seed=2)
    runs = find_runs([tmp_path])
    drawn = efficiency(runs).svg()
    assert drawn.startswith('<svg role="img" aria-label="')
    assert drawn == efficiency(runs).svg()
    for told in ("tuna has ", "trains 150 images/s", "predicts 100 images/s"):
        assert told in drawn
    for written in ("daf", "ease", "tuna", "training (images/s)", "inference (images/s)"):
        assert f">{written}</text>" in drawn
    assert "right edge" not in efficiency_caption(runs)
    rewrite(tmp_path / "ease", "results.json", untrain)
    with pytest.raises(NothingToDraw, match="needs 3 methods"):
        efficiency(find_runs([tmp_path]))


def test_speeds_are_not_drawn_where_accuracies_do_not_compare(tmp_path):
    make_fast_and_slow(tmp_path)
    make_run(tmp_path / "elsewhere", method="slca", data={"name": "imagenet-r"})
    runs = find_runs([tmp_path])
    with pytest.raises(NothingToDraw):
        efficiency(runs)
    assert efficiency([run for run in runs if run.config.method != "slca"])


def test_what_replayed_its_training_is_left_out_of_the_speeds(tmp_path):
    """It has no speed of training either, but would train if it were run alone."""
    make_fast_and_slow(tmp_path, ("daf", "tuna", "ease", "slca"))
    make_run(tmp_path / "paper", method="daf-paper", replay="runs/daf")
    rewrite(tmp_path / "paper", "results.json", untrain)
    runs = find_runs([tmp_path])
    assert "daf-paper" not in efficiency(runs).svg()
    assert "Not drawn, because their training was replayed: daf-paper." in efficiency_caption(runs)
    (replayed,) = (run for run in runs if run.config.method == "daf-paper")
    assert replayed.replayed
    assert math.isnan(measures(replayed)["seconds"])
    assert "Not drawn" not in efficiency_caption([run for run in runs if run is not replayed])


def test_what_trains_nothing_stands_at_the_right_edge(tmp_path):
    make_fast_and_slow(tmp_path, ("daf", "tuna", "ease", "simplecil"))
    rewrite(tmp_path / "simplecil", "results.json", untrain)
    runs = find_runs([tmp_path])
    assert re.search(
        r"simplecil has [\d.]+ %, trains nothing after its first task, predicts 50 images/s",
        efficiency(runs).svg(),
    )
    assert "right edge" in efficiency_caption(runs)
    assert efficiency_caption(runs).endswith("All on cpu (2 threads).")
    runs[0] = replace(runs[0], provenance=replace(runs[0].provenance, device="another"))
    assert efficiency_caption(runs).endswith("measured on another and on cpu (2 threads).")


def test_other_ways_to_predict_have_no_speed_and_no_point(tmp_path):
    make_fast_and_slow(tmp_path, ("daf", "tuna"))
    make_run(tmp_path / "icarl", method="icarl", declares={"prediction": "nme"}, others=["cnn"])
    drawn = efficiency(find_runs([tmp_path])).svg()
    assert ">icarl [nme]</text>" in drawn
    assert "cnn" not in drawn


def test_names_beside_points_are_no_formulas_and_not_endless(tmp_path):
    make_fast_and_slow(tmp_path)
    make_run(tmp_path / "odd", options={"rule": "$x^$ <&> {"})
    drawn = efficiency(find_runs([tmp_path])).svg()
    assert ">daf (rule=$x^$ &lt;&amp;&gt; {)</text>" in drawn
    make_run(tmp_path / "long", options={"rule": "r" * 32})
    assert f">daf (rule={'r' * 21}…</text>" in efficiency(find_runs([tmp_path])).svg()


@pytest.mark.parametrize("factor", [1, 1.0001, 7, 1000])
def test_axes_of_speed_have_ticks_whatever_the_range(tmp_path, factor):
    make_fast_and_slow(tmp_path)
    for number, method in enumerate(("daf", "tuna", "ease")):

        def at_speed(content, number=number):
            for task in content["tasks"]:
                task["seconds"] = {"train": 13 * factor**number, "evaluate": 1.7 * factor**number}

        rewrite(tmp_path / method, "results.json", at_speed)
    drawn = efficiency(find_runs([tmp_path])).svg()
    for anchor in ("middle", "start"):  # of the horizontal axis, and of the colours
        assert len(re.findall(rf"text-anchor: {anchor}[^>]*>[\d.e+-]+</text>", drawn)) >= 2


def test_efficiency_picture_is_1200_pixels_wide(tmp_path):
    from PIL import Image

    runs = find_runs([make_fast_and_slow(tmp_path)])
    efficiency(runs).write_png(tmp_path / "efficiency.png")
    with Image.open(tmp_path / "efficiency.png") as picture:
        assert picture.width == 1200


def boxes_of(places, sizes):
    return [
        (place.left, place.bottom, place.left + width, place.bottom + height)
        for place, (width, height) in zip(places, sizes, strict=True)
    ]


def test_a_lonely_name_is_right_of_its_point_or_left_at_the_edge():
    sizes, frame = np.array([(40.0, 10.0)] * 2), np.array([0, 0, 300, 200.0])
    (a, b) = place_labels(np.array([(50.0, 100.0), (290.0, 30.0)]), sizes, frame)
    assert a == (50 + NEAR, 95, NEAR, 1)
    assert b == (290 - NEAR - 40, 25, NEAR, -1)


def test_crowded_names_hide_neither_each_other_nor_points():
    rng = np.random.default_rng(0)
    points = rng.normal((150, 100), (40, 30), (18, 2))
    sizes = np.array([(10.0 + 4 * (k % 8), 10.0) for k in range(18)])
    boxes = boxes_of(place_labels(points, sizes, np.array([0, 0, 300, 200.0])), sizes)
    for i, (left, bottom, right, top) in enumerate(boxes):
        assert 0 <= left < right <= 300
        assert 0 <= bottom < top <= 200
        assert not any(left < x < right and bottom < y < top for x, y in points)
        for other in boxes[:i]:
            apart = left >= other[2] or other[0] >= right or bottom >= other[3] or other[1] >= top
            assert apart


def kept(tmp_path, *settings):
    for number, options in enumerate(settings):
        folder = make_run(tmp_path / str(number), method="lift", options=options)

        def keep(content, factor=number + 1):
            for task in content["tasks"]:
                task["kept_bytes"] = {"statistics": 1000 * factor}

        rewrite(folder, "results.json", keep)
    return find_runs([tmp_path])


def test_accuracy_against_bytes_names_series_by_words_and_points_by_numbers(tmp_path):
    common = {"name": "lift", "width": 0, "keep": "pooled", "rank": 8}
    runs = kept(
        tmp_path, {**common, "width": 9}, common, {**common, "keep": "classwise", "rank": 2}
    )
    found = tradeoffs.memory_points(runs)
    assert [(point.series, point.label, point.kept) for point in found] == [
        ("pooled", "width 9", 1000),
        ("pooled", "width 0", 2000),
        ("classwise", "", 3000),
    ]
    table = tradeoffs.memory_rows(runs)
    assert [row[-2:] for row in table] == [["1 kB", "50 B"], ["2 kB", "100 B"], ["3 kB", "150 B"]]
    for draw in (tradeoffs.memory, comparisons.ranking):
        draw(runs).write_png(tmp_path / "figure.png")
        assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    averages = [row.cells["average"].mean for row in comparisons.ranked(runs)]
    assert averages == sorted(averages, reverse=True)


def test_settings_that_do_not_compare_make_neither(tmp_path):
    for number, data in enumerate(("cifar100", "cifar100", "imagenet-r")):
        make_run(tmp_path / str(number), seed=number, data={"name": data})
    runs = find_runs([tmp_path])
    assert tradeoffs.memory_rows(runs) == []
    for draw in (tradeoffs.memory, comparisons.ranking):
        with pytest.raises(DafuseError, match="on the same data and stream"):
            draw(runs)


def test_streams_are_told_apart_by_lines_and_methods_by_colours(tmp_path):
    for stream in ("online", "blurry"):
        for method in ("lift", "simplecil"):
            make_run(tmp_path / f"{stream}-{method}", method=method, stream=stream)
    runs = sorted(find_runs([tmp_path]), key=lambda run: (run.config.stream, run.config.method))
    with canvas() as figure:
        comparisons.accuracy_curves(runs).draw(figure, 9)
        lines = figure.axes[0].lines[:4]
    assert [line.get_color() for line in lines] == [*comparisons.PALETTE[:2]] * 2
    assert [line.get_linestyle() for line in lines] == ["-", "-", "--", "--"]
