"""The page and the command that writes it: what they say, and what they must never contain."""

import math
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from dafuse.errors import DafuseError
from dafuse.report.outputs import report
from dafuse.report.page import page
from dafuse.report.runs import find_runs, load_run
from helpers.run_folders import NASTY, make_run, rewrite


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


def test_page_has_one_section_for_all_predictions_of_a_run(tmp_path):
    declares = {"prediction": "nme", "keeps_images": True, "passes_per_prediction": 2}
    declares["assumes"] = "the number of classes"
    for seed in (1, 2):
        make_run(tmp_path / str(seed), method="icarl", seed=seed, declares=declares, others=["cnn"])
    html = page(find_runs([tmp_path]))
    text = Page(html).text
    assert html.count('<section class="run" id="run-') == 2
    assert "icarl [nme] on cifar100" in text
    assert "sample std" in text
    assert "icarl [cnn], seed" not in text
    assert (
        "2 forward passes per prediction · keeps images: yes · assumes the number of classes · "
        "predicts by nme · also recorded by cnn · on cpu (2 threads)" in text
    )


def test_page_tells_kept_bytes_by_kind(tmp_path):
    folder = make_run(tmp_path / "run")

    def keep(content):
        content["tasks"][0]["kept_bytes"] = {"exemplars": 5000, "modules": 1000}
        content["tasks"][-1]["kept_bytes"] = {"own": 7, "exemplars": 20_000, "statistics": 3000}

    rewrite(folder, "results.json", keep)
    html = page([load_run(folder)])
    table = re.sub(r"<[^>]+>", " ", html[html.index("Kept beside the backbone</h3>") :])
    told = " ".join(table.split())
    assert told.startswith(
        "Kept beside the backbone Kind After the first task After the last "
        "modules 1 kB 0 B statistics 0 B 3 kB exemplars 5 kB 20 kB own 0 B 7 B all 6 kB 23 kB"
    )


def test_page_shows_accuracy_against_speed_of_three_methods(tmp_path):
    for method in ("daf", "tuna"):
        make_run(tmp_path / method, method=method)
    assert "Accuracy and speed" not in page(find_runs([tmp_path]))
    make_run(tmp_path / "ease", method="ease")
    assert "Accuracy and speed" in Page(page(find_runs([tmp_path]))).text


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
    names = ["accuracy.png", "report.html", "table.csv", "table.md", "table.tex"]
    assert sorted(path.name for path in out.iterdir()) == names
    assert all(str(out / name) in told for name in names)
    assert "skipped" in told
    (tmp_path / "file").write_text("")
    with pytest.raises(DafuseError, match="cannot make the folder"):
        report([str(tmp_path / "runs")], out=str(tmp_path / "file"))


def test_report_never_imports_torch():
    code = (
        "import sys, dafuse.report.outputs; "
        "print({'torch', 'matplotlib', 'scipy', 'jinja2'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
