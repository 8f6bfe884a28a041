"""Sums behind a network that may be tuned: what is special about them; `learn --tune`, `--set`."""

import subprocess
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from dafuse.cli import main
from dafuse.errors import DafuseError
from dafuse.heads.confidence import calibration_error
from dafuse.product.classifier import Classifier
from dafuse.product.folder import ModelFolder
from dafuse.product.objects import read_arrays
from helpers.processes import clean_environment, dafuse_without
from helpers.product_models import pictures, write_folders
from helpers.taught_methods import SETTINGS, make

BY_TORCH = ["ranpac", "layup", "klda", "anacp", "lift tuned"]
by_torch = pytest.mark.parametrize("method", BY_TORCH)


def run_dafuse(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run dafuse and return what it prints, to either stream."""
    with suppress(SystemExit):
        main([*arguments, "--device", "cpu"])
    said = capsys.readouterr()
    return said.out + said.err


def adapter(model: Classifier) -> dict[str, np.ndarray]:
    arrays = read_arrays(model.folder, model.version)
    return {name: array for name, array in arrays.items() if name.startswith("shared/modules/")}


@pytest.mark.usefixtures("small_network")
class TestLessons:
    @by_torch
    def test_probabilities_mean_what_they_say(self, tmp_path: Path, method: str) -> None:
        model = make(tmp_path / "model", method)
        for first in (0, 4):
            report = model.learn(*pictures(dict.fromkeys(range(first, first + 4), 20), seed=first))
            assert report.tested >= 8
        images, labels = pictures(dict.fromkeys(range(8), 20), seed=9)
        probabilities_NC = model.probabilities(images)
        right_N = np.array(model.classes)[probabilities_NC.argmax(1)] == np.array(labels)
        assert right_N.mean() > 0.6
        assert calibration_error(probabilities_NC.max(1), right_N) < 0.15
        assert model.version.numbers["temperature_images"] >= 16  # of both lessons

    @by_torch
    def test_what_stays_of_a_class_is_said(self, tmp_path: Path, method: str) -> None:
        """The record goes; of what is shared, `forget` says that it stays as it was."""
        model = make(tmp_path / "model", method)
        model.learn(*pictures({0: 6, 1: 6, 2: 6}))
        before = read_arrays(model.folder, model.version)
        forgotten = model.forget("class 1")
        after = read_arrays(model.folder, model.version)
        assert "images" in forgotten.remains
        for name, array in before.items():
            if name.startswith("class/"):
                assert np.array_equal(after[name], array[[0, 2]])
            elif name.startswith("shared/"):
                assert np.allclose(after[name], array, atol=1e-5)  # a factor is rounded again

    @pytest.mark.parametrize("method", ["ranpac", "layup"])
    def test_known_classes_again_are_as_if_taught_at_once(
        self, tmp_path: Path, method: str
    ) -> None:
        """Sums add up; only the first lesson trains, and only the last one chooses a penalty."""
        first, more = pictures({0: 8, 1: 8}), pictures({0: 5, 1: 7, 2: 6}, seed=1)
        model = make(tmp_path / "model", method)
        model.learn(*first)
        model.learn(*more)
        arrays = read_arrays(model.folder, model.version)
        hidden_NM = model.features([*first[0], *more[0]]).astype(np.float64)
        labels = np.array([*first[1], *more[1]])
        hot_NC = (labels[:, None] == np.array(model.classes)).astype(np.float64)
        close = {"rtol": 1e-4, "atol": 1e-3}
        assert np.allclose(arrays["shared/gram"], hidden_NM.T @ hidden_NM, **close)
        assert np.allclose(arrays["class/moments"], hot_NC.T @ hidden_NM, **close)

    @by_torch
    def test_an_exported_file_answers_alike(self, tmp_path: Path, method: str) -> None:
        model = make(tmp_path / "model", method)
        model.learn(*pictures({0: 6, 1: 6}))
        assert model.export(tmp_path / "model.onnx").difference.largest < 1e-4

    @pytest.mark.parametrize("method", ["ranpac", "lift tuned", "layup tuned", "anacp tuned"])
    def test_a_first_lesson_that_trains_needs_two_classes(
        self, tmp_path: Path, method: str
    ) -> None:
        model = make(tmp_path / "model", method)
        with pytest.raises(DafuseError, match="trains an adapter, which needs two classes"):
            model.learn(*pictures({0: 6}))
        model.learn(*pictures({0: 6, 1: 6}))
        trained = adapter(model)
        assert any(array.any() for name, array in trained.items() if "up." in name)
        model.learn(*pictures({2: 6, 3: 6}, seed=1))
        for name, array in adapter(model).items():
            assert np.array_equal(array, trained[name])  # only the first lesson trains

    def test_each_trains_where_there_are_classes_to_tell_apart(self, tmp_path: Path) -> None:
        model = make(tmp_path / "model", "lift tuned each", tune_tasks=2)
        adapters = []
        for counts in ({0: 6, 1: 6}, {2: 6}, {3: 6, 4: 6}, {5: 6, 6: 6}):
            model.learn(*pictures(counts))
            adapters.append(model.version.shared)
        assert adapters[0] == adapters[1] != adapters[2] == adapters[3]

    @by_torch
    def test_options_of_training_are_refused_where_nothing_is_trained(
        self, tmp_path: Path, method: str
    ) -> None:
        model = make(tmp_path / "model", method)
        model.learn(*pictures({0: 6, 1: 6}))
        with pytest.raises(DafuseError, match=r"epochs.* only (to lessons|for methods) that train"):
            model.learn(*pictures({2: 6, 3: 6}), epochs=1)

    def test_tuned_models_and_other_seeds_are_not_merged(self, tmp_path: Path) -> None:
        for method, seed, why in (
            ("ranpac", 1993, "each has an adapter of its own"),
            ("lift tuned", 1993, "each has an adapter of its own"),
            ("klda", 7, "random columns of its own"),
        ):
            seeds = (1993, seed)
            parts = [make(tmp_path / f"{method}{i}", method, seed=s) for i, s in enumerate(seeds)]
            for part in parts:
                part.learn(*pictures({0: 4, 1: 4}))
            with pytest.raises(DafuseError, match=why):
                Classifier.merge(parts, tmp_path / "out")
            assert not (tmp_path / "out").exists()

    def test_tune_and_set_from_the_command_line(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        write_folders(Path("photos"), {0: 6, 1: 6})
        write_folders(Path("later"), {2: 6}, seed=1)

        def learn(model: str, *more: str) -> str:
            return run_dafuse(capsys, "learn", model, *more)

        assert "version 1" in learn("tuned", "photos", "--tune", "--epochs", "1")
        settings = ModelFolder("tuned").read(lambda version: version.settings)
        assert (settings["tune"], settings["keep"]) == ("first", "classwise")
        assert "version 2" in learn("tuned", "later")
        assert "made with tune=first, which" in learn("tuned", "later", "--set", "tune=each")
        assert "version 1" in learn("plain", "photos", "--set", "rank=3", "--set", "head=auto")
        settings = ModelFolder("plain").read(lambda version: version.settings)
        assert (settings["rank"], settings["head"]) == (3, "auto")
        assert "version 2" in learn("plain", "later", "--set", "rank=3")
        for given, said in (
            (["plain", "later", "--set", "rank=4"], "made with rank=3"),
            (["plain", "later", "--tune"], "made with tune=none, which cannot be changed"),
            (["plain", "later", "--set", "rnak=8"], "no option rnak; it has features, head"),
            (["plain", "later", "--set", "rnak=8"], "; did you mean rank?"),
            (["tuned", "later", "--set", "epohcs=8"], "no option epohcs"),
            (["tuned", "later", "--set", "epohcs=8"], "; did you mean epochs?"),
            (["new", "photos", "--set", "rank"], "--set takes NAME=VALUE"),
            (["new", "photos", "--set", "seed=3"], "lift has no option seed; it has features"),
            (["new", "photos", "--method", "ranpac", "--set", "projection=x"], "be a whole number"),
            (["new", "photos", "--method", "ranpac", "--tune"], "ranpac has no option tune"),
        ):
            assert said in learn(*given)
        assert not Path("new").exists()


def test_the_method_list_says_what_can_be_taught(capsys: pytest.CaptureFixture[str]) -> None:
    main(["list", "methods"])
    said = " ".join(capsys.readouterr().out.split())
    for method in {name.split()[0] for name in SETTINGS}:
        assert f"dafuse learn --method {method}" in said
    assert "--method simplecil (without torch)" in said
    assert "--method ease" not in said


@pytest.mark.parametrize("options", [["--tune"], ["--method", "klda"]])
def test_without_torch_one_line_says_what_to_install(tmp_path: Path, options: list[str]) -> None:
    write_folders(tmp_path / "photos", {0: 2, 1: 2})
    command = [*dafuse_without("torch", "timm"), "learn", "model", "photos", *options]
    found = subprocess.run(
        command, cwd=tmp_path, env=clean_environment(), capture_output=True, text=True
    )
    assert found.returncode == 2
    assert found.stderr.strip().count("\n") == 0
    assert "pip install 'dafuse[torch]'" in found.stderr
    assert not (tmp_path / "model").exists()
