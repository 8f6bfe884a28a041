"""Reports on made-up run folders: numbers, names, escapes, and what a page must never contain."""

import csv
import json
import math
import re
import statistics
import subprocess
import sys
from html.parser import HTMLParser
from io import StringIO
from itertools import pairwise

import numpy as np
import pytest

from dafuse.errors import DafuseError
from dafuse.report import figures, run_figures, tables
from dafuse.report.command import report
from dafuse.report.drawing import spread
from dafuse.report.groups import group_runs
from dafuse.report.measures import human_bytes
from dafuse.report.page import page
from dafuse.report.runs import NoResultsYet, find_runs, load_run

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
    confusion = rng.poisson(0.15, (seen, seen)) + np.diag(np.full(seen, images))
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
        },
        "tasks": [_task(rng, t, epochs, sum(counts[: t + 1]), diagnosed) for t in range(done)],
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


def rewrite(folder, name, change):
    content = json.loads((folder / name).read_text())
    change(content)
    (folder / name).write_text(json.dumps(content))


class Page(HTMLParser):
    """Checks that tags are closed in order, and gathers what a reader would see."""

    VOID = ("meta", "br")

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.ids, self.text = [], [], [], ""
        self.attributes = []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        self.ids += [value for name, value in attributes if name == "id"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


# ---- reading run folders


def test_finds_runs_at_any_depth_once_and_in_order(tmp_path):
    make_run(tmp_path / "a" / "x" / "one")
    make_run(tmp_path / "b", method="simplecil")
    make_run(tmp_path / "b" / "inside", method="ignored, since runs hold no runs")
    (tmp_path / "c").symlink_to(tmp_path)
    runs = find_runs([tmp_path, tmp_path / "b"])
    assert [run.method for run in runs] == ["daf", "simplecil"]


def test_bad_paths_are_named(tmp_path):
    with pytest.raises(DafuseError, match=r"gone is not a folder"):
        find_runs([tmp_path / "gone"])
    with pytest.raises(DafuseError, match=r"is not a run folder"):
        find_runs([tmp_path])
    with pytest.raises(DafuseError, match=r"is not a run folder"):
        load_run(tmp_path)


def test_runs_without_results(tmp_path):
    make_run(tmp_path / "runs" / "good")
    (make_run(tmp_path / "runs" / "new") / "results.json").unlink()
    make_run(tmp_path / "runs" / "newer", done=0)
    said = []
    assert len(find_runs([tmp_path / "runs"], said.append)) == 1
    assert len(said) == 2
    assert all("no task is finished" in line for line in said)
    with pytest.raises(NoResultsYet, match="no results yet"):
        find_runs([tmp_path / "runs" / "new"])
    (tmp_path / "runs" / "good" / "results.json").unlink()
    with pytest.raises(NoResultsYet, match="nothing to report yet"):
        find_runs([tmp_path / "runs"])


@pytest.mark.parametrize("name", ["config.json", "provenance.json", "results.json"])
def test_damaged_newer_and_foreign_files_are_named(tmp_path, name):
    folder = make_run(tmp_path / "run")
    rewrite(folder, name, lambda content: content.update(format=2))
    with pytest.raises(DafuseError, match=rf"{name} has format 2.*upgrade"):
        load_run(folder)
    (folder / name).write_text('{"format": 1, "cut": [1, 2')
    with pytest.raises(DafuseError, match=rf"{name} is not whole JSON"):
        load_run(folder)
    (folder / name).write_text("[]")
    with pytest.raises(DafuseError, match=rf"{name} was not written by a dafuse run"):
        load_run(folder)


def test_results_that_do_not_hold_together_are_named(tmp_path):
    folder = make_run(tmp_path / "run")
    rewrite(folder, "results.json", lambda content: content["correct"][1].pop())
    with pytest.raises(DafuseError, match=r"results\.json does not hold together"):
        load_run(folder)


def test_partial_run_is_marked(tmp_path):
    make_run(tmp_path / "run", tasks=20, done=3)
    runs = find_runs([tmp_path])
    assert runs[0].mark == "3 of 20 tasks"
    assert runs[0].seen_classes == [5, 10, 15]
    assert "daf, 3 of 20 tasks" in tables.markdown(tables.make_table(runs))
    assert "3 of 20 tasks" in Page(page(runs)).text


# ---- names and groups


def names(folder):
    return [group.name for group in group_runs(find_runs([folder]))]


def test_name_has_only_the_options_that_differ(tmp_path):
    make_run(tmp_path / "1")
    make_run(tmp_path / "2", options={"rule": "last"})
    make_run(tmp_path / "3", method="simplecil")
    assert names(tmp_path) == ["daf (rule=dynamic)", "daf (rule=last)", "simplecil"]


def test_data_and_backbone_are_named_when_they_differ(tmp_path):
    make_run(tmp_path / "1")
    assert names(tmp_path) == ["daf"]
    make_run(tmp_path / "2", data={"name": "imagenet-r"})
    assert names(tmp_path) == ["daf (cifar100)", "daf (imagenet-r)"]
    make_run(tmp_path / "3", backbone="vit_base", increment=10)
    assert names(tmp_path)[2] == "daf (cifar100, vit_base, increment=10)"


def test_seeds_group_unless_their_progress_differs(tmp_path):
    for seed in (1993, 1994):
        make_run(tmp_path / str(seed), seed=seed)
    make_run(tmp_path / "late", seed=1995, done=2)
    groups = group_runs(find_runs([tmp_path]))
    assert [len(group.runs) for group in groups] == [2, 1]
    assert [group.label for group in groups] == ["daf", "daf, 2 of 4 tasks"]
    assert groups[0].title(groups[0].runs[1]) == "daf, seed 1994"


# ---- tables


def test_numbers_equal_hand_computed_ones(tmp_path):
    folder = make_run(tmp_path / "run", tasks=2)

    def by_hand(content):
        content["correct"], content["total"] = [[8], [6, 27]], [[10], [10, 30]]
        content["tasks"] = [
            {
                "task": t,
                "seconds": {"train": 4.0, "align": 1.0, "evaluate": 0.5},
                "images": {"train": 100, "evaluate": images},
                "kept_bytes": {"modules": 1_000_000, "statistics": 500_000 * (t + 1)},
                "diagnosis": {},
            }
            for t, images in enumerate((10, 40))
        ]

    rewrite(folder, "results.json", by_hand)
    table = tables.make_table(find_runs([tmp_path]))
    means = {key: cell.mean for key, cell in table.rows[0].cells.items()}
    assert means == pytest.approx(
        {
            "average": (80 + 82.5) / 2,
            "final": 82.5,
            "average_per_task": (80 + 75) / 2,
            "final_per_task": 75,
            "stability": 60,
            "plasticity": 85,
            "forgetting": 20,
            "train_speed": 200 / 10,
            "inference_speed": 80,
            "seconds": 11,
            "kept_bytes": 2_000_000,
            "passes": 1,
        }
    )
    row = dict(zip(tables.header(), tables.plain_rows(table)[0], strict=True))
    assert row["Method"] == "daf"
    assert (row["Runs"], row["Tasks"]) == ("1", "2")
    assert (row["Average"], row["Final"]) == ("81.25", "82.50")
    assert (row["Kept"], row["Passes"], row["Seconds"]) == ("2 MB", "1", "11")


def test_mean_and_sample_deviation_over_seeds(tmp_path):
    for seed in range(1993, 1998):
        make_run(tmp_path / str(seed), seed=seed)
    runs = find_runs([tmp_path])
    finals = [run.matrix.metrics()["final"] for run in runs]
    (row,) = tables.make_table(runs).rows
    assert (row.runs, row.seeds) == (5, 5)
    assert row.cells["final"].mean == pytest.approx(np.mean(finals))
    assert row.cells["final"].deviation == pytest.approx(np.std(finals, ddof=1))
    text = f"{np.mean(finals):.2f} ± {statistics.stdev(finals):.2f}"
    assert text in tables.markdown(tables.make_table(runs))


def test_repeated_seed_is_not_passed_off_as_a_seed(tmp_path):
    make_run(tmp_path / "a")
    make_run(tmp_path / "b")
    assert tables.plain_rows(tables.make_table(find_runs([tmp_path])))[0][1] == "2 (seeds: 1)"


def test_csv_parses_back(tmp_path):
    make_run(tmp_path / "1", options={"rule": 'last, "or" so'})
    make_run(tmp_path / "2", tasks=4, done=1)
    table = tables.make_table(find_runs([tmp_path]))
    rows = list(csv.DictReader(tables.csv(table).splitlines()))
    assert [row["method"] for row in rows] == [row.name for row in table.rows]
    for read, row in zip(rows, table.rows, strict=True):
        for key, cell in row.cells.items():
            assert read[key] == ("" if math.isnan(cell.mean) else repr(cell.mean))
            assert read[f"{key}_deviation"] == ""
    assert (rows[1]["tasks"], rows[1]["tasks_total"]) == ("1", "4")
    assert rows[1]["stability"] == rows[1]["forgetting"] == ""  # there is no earlier task


def test_latex_and_markdown_are_escaped(tmp_path):
    for seed in (1, 2):
        make_run(tmp_path / str(seed), seed=seed, options={"rule": "a_b & 50% $x$ {} # ~ ^ \\ |"})
    make_run(tmp_path / "3", done=1)
    table = tables.make_table(find_runs([tmp_path]))
    latex = tables.latex(table)
    assert r"a\_b \& 50\% \$x\$ \{\} \# \textasciitilde{} \textasciicircum{}" in latex
    assert r"$\pm$" in latex
    assert "±" not in latex
    assert all(rule in latex for rule in (r"\toprule", r"\midrule", r"\bottomrule"))
    columns = len(tables.header())
    for line in latex.splitlines()[2:-2]:
        if "&" in line:
            assert len(re.findall(r"(?<!\\)&", line)) == columns - 1
    for line in tables.markdown(table).splitlines():
        assert len(re.findall(r"(?<!\\)\|", line)) == columns + 1


@pytest.mark.parametrize("rows", [1, 6])
def test_terminal_table_shows_all_of_few_and_the_essence_of_many(tmp_path, rows):
    from rich.console import Console

    for number in range(rows):
        make_run(tmp_path / str(number), options={"rule": f"[red]{number}"})
    table = tables.make_table(find_runs([tmp_path]))
    console = Console(width=100, record=True, file=StringIO())
    console.print(tables.terminal(table))
    text = console.export_text()
    shown = tables.header() if rows <= 4 else tables.FOR_TERMINAL
    for cells in tables.plain_rows(table):
        row = dict(zip(tables.header(), cells, strict=True))
        assert all(title in text and row[title] in text for title in shown)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1234, "1.23 kB"), (236e6, "236 MB"),
     (999_999, "1 MB"), (5e12, "5000 GB")],
)  # fmt: skip
def test_human_bytes(count, text):
    assert human_bytes(count) == text


# ---- figures


def test_figures_are_complete_svg_without_global_state(tmp_path):
    run = load_run(make_run(tmp_path / "run"))
    drawn = [
        figures.accuracy_curves([run]), figures.accuracy_matrix(run), figures.confusion(run),
        run_figures.beta_per_layer(run), run_figures.fusion_diagnosis(run),
        run_figures.bound_terms(run), run_figures.seconds_per_phase(run),
        run_figures.training_loss(run),
    ]  # fmt: skip
    for svg in drawn:
        assert svg.startswith('<svg role="img" aria-label="')
        assert svg.endswith("</svg>")
        assert "<text" in svg  # letters, not outlines
    assert "matplotlib.pyplot" not in sys.modules
    assert figures.accuracy_matrix(run) == drawn[1]  # the same numbers give the same bytes


def test_nothing_recorded_draws_nothing(tmp_path):
    run = load_run(make_run(tmp_path / "run", method="simplecil", epochs=0))
    for draw in (
        run_figures.beta_per_layer, run_figures.fusion_diagnosis, run_figures.bound_terms,
        run_figures.training_loss,
    ):  # fmt: skip
        assert draw(run) == ""
    rewrite(run.folder, "results.json", lambda content: content.update(confusion=[]))
    assert figures.confusion(load_run(run.folder)) == ""


def test_most_confused_classes_come_in_pairs():
    counts = np.diag([9, 9, 9, 9, 9])
    counts[1, 4], counts[4, 1], counts[0, 2] = 3, 2, 4
    assert figures.most_confused(counts, most=2) == [1, 4]
    assert figures.most_confused(counts, most=4) == [0, 1, 2, 4]
    assert figures.most_confused(np.diag([9, 9])) == []


def test_labels_are_moved_apart_only_where_they_collide():
    assert spread([90, 50, 10], 5) == [90, 50, 10]
    assert spread([52, 50, 10], 6) == [54, 48, 10]
    placed = spread([60, 59, 58.5, 50, 48], 4)
    assert all(a - b >= 4 - 1e-9 for a, b in pairwise(placed))
    assert sum(placed) == pytest.approx(60 + 59 + 58.5 + 50 + 48)


def test_readme_picture_is_1200_pixels_wide(tmp_path):
    from PIL import Image

    for method in ("daf", "simplecil"):
        make_run(tmp_path / method, method=method)
    figures.curve_png(find_runs([tmp_path]), tmp_path / "curve.png")
    with Image.open(tmp_path / "curve.png") as picture:
        assert picture.width == 1200


# ---- the page


def test_page_about_many_kinds_of_runs_is_sound_and_self_contained(tmp_path):
    for seed in (1993, 1994):
        make_run(tmp_path / f"daf-{seed}", seed=seed)
    make_run(tmp_path / "simplecil", method="simplecil", epochs=0)
    make_run(tmp_path / "partial", method="tuna", tasks=20, done=3)
    make_run(tmp_path / "one-task", method="ranpac", tasks=1)
    make_run(tmp_path / "untested", method="ease", untested=(0, 2))
    make_run(tmp_path / "never-tested", method="l2p", untested=(0, 1, 2, 3))
    html = page(find_runs([tmp_path]))
    parsed = Page(html)
    assert set(re.findall(r"https?://[^\s\"'<>)]+", html)) <= {"http://www.w3.org/2000/svg"}
    assert not {"script", "link", "iframe", "img"} & set(parsed.tags)
    assert "@import" not in html
    assert len(parsed.ids) == len(set(parsed.ids))
    references = [
        value[1:]
        for name, value in parsed.attributes
        if name == "href" and not value.startswith("data:image/png;base64,")
    ]
    references += re.findall(r"url\(#([^)]+)\)", html)
    assert references
    assert set(references) <= set(parsed.ids)
    assert "task boundaries" in parsed.text or "boundaries between tasks are known" in parsed.text
    assert parsed.text.count("Fusion coefficient by layer") == 2  # the two runs of DAF
    assert "daf, seed 1994" in parsed.text
    assert "nan" not in parsed.text.lower().replace("provenance", "")


def test_page_of_one_run_has_no_contents_and_says_what_it_was(tmp_path):
    html = page([load_run(make_run(tmp_path / "run", skipped=["a/b.png: cut off"]))])
    text = Page(html).text
    assert "<nav" not in html
    for fact in ("dafuse run daf --seed 1993", "ef" * 32, "a/b.png: cut off", "1.25", "2.11.0"):
        assert fact in text


@pytest.mark.parametrize("tasks", [1, 4])
def test_page_escapes_names_from_the_data(tmp_path, tasks):
    run = load_run(
        make_run(
            tmp_path / "run",
            tasks=tasks,
            names=[NASTY, "猫", "$a$"] + [f"{NASTY}{c}" for c in range(tasks * 5 - 3)],
            skipped=[NASTY],
            options={"rule": NASTY},
        )
    )
    html = page([run])
    parsed = Page(html)
    assert "script" not in parsed.tags
    assert NASTY in parsed.text


def test_page_takes_null_and_not_a_number(tmp_path):
    folder = make_run(tmp_path / "run")

    def spoil(content):
        content["tasks"][1]["loss"][1] = math.nan
        content["tasks"][1]["diagnosis"]["clipped_low"] = None
        content["tasks"][2]["diagnosis"] = None
        content["tasks"][3]["diagnosis"]["moved"] = {"distance": 0.1}
        del content["tasks"][0]["loss"], content["tasks"][0]["images"]["train"]

    rewrite(folder, "results.json", spoil)
    (folder / "provenance.json").unlink()
    Page(page([load_run(folder)]))


def test_command_writes_everything_and_says_so(tmp_path):
    make_run(tmp_path / "runs" / "a")
    make_run(tmp_path / "runs" / "b", done=0)
    out = tmp_path / "deep" / "out"
    told = report([str(tmp_path / "runs")], out=str(out))
    names = ["report.html", "table.csv", "table.md", "table.tex"]
    assert sorted(path.name for path in out.iterdir()) == names
    assert all(str(out / name) in told for name in names)
    assert "left out" in told
    (tmp_path / "file").write_text("")
    with pytest.raises(DafuseError, match="cannot make the folder"):
        report([str(tmp_path / "runs")], out=str(tmp_path / "file"))


def test_report_never_imports_torch():
    code = (
        "import sys, dafuse.report.command; "
        "print([name for name in ('torch', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
