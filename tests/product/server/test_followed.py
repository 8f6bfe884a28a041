"""An exported file that is replaced, half-written or damaged while it is served."""

import logging
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from dafuse.data.images import UnreadableImage
from dafuse.product.predictor import ExportedModel, Prediction
from dafuse.product.server.app import create_app
from dafuse.product.server.followed import FollowedFile
from helpers.served_apps import Greys, client, files, grey, wait_for

OFTEN = 0.05  # seconds between two looks


@pytest.fixture
def followed(file: Path) -> Iterator[FollowedFile]:
    found = FollowedFile(file, lambda: ExportedModel(file, threads=1))
    with found.watching(OFTEN):
        yield found


def test_a_file_put_in_its_place_is_taken_up(
    followed: FollowedFile, file: Path, made: list[Path]
) -> None:
    before = followed.model
    shutil.copy(made[1], file.with_name("new"))
    os.replace(file.with_name("new"), file)
    wait_for(lambda: followed.model is not before)
    assert followed.classes == ["class 2", "class 3", "class 4"]
    image = np.zeros((32, 32, 3), np.uint8)
    assert before.probabilities(image).shape == (1, 2)  # who still asks it is answered by it
    assert followed.model.probabilities(image).shape == (1, 3)


def test_a_copy_that_is_half_written_changes_nothing_until_it_is_whole(
    followed: FollowedFile, file: Path, made: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    before, content = followed.model, made[1].read_bytes()
    with caplog.at_level(logging.WARNING), file.open("wb") as writing:
        writing.write(content[: len(content) // 2])
        writing.flush()
        wait_for(lambda: caplog.records)  # it stood still, so it was looked at
        assert followed.model is before
        assert "the model before it goes on" in caplog.records[0].message
        writing.write(content[len(content) // 2 :])
    wait_for(lambda: followed.model is not before)
    assert len(caplog.records) == 1
    assert followed.classes == ["class 2", "class 3", "class 4"]


def test_a_file_that_goes_and_comes_back_is_no_trouble(
    followed: FollowedFile, file: Path, made: list[Path]
) -> None:
    before = followed.model
    file.unlink()
    threading.Event().wait(4 * OFTEN)
    assert followed.model is before
    shutil.copy(made[1], file)
    wait_for(lambda: followed.model is not before)


def test_all_answers_to_a_request_come_from_one_version() -> None:
    """Images of one request go in several batches; the model changes after the first."""

    class Changing(Greys):
        """Each batch finds a newer model."""

        number = 0

        @property
        def model(self) -> Any:
            self.number += 1
            return Version(str(self.number))

    class Version:
        def __init__(self, name: str) -> None:
            self.name = name

        def answers(self, images: list[bytes], top: int) -> Iterator[Prediction | UnreadableImage]:
            for _ in images:
                yield Prediction(self.name, 1.0, False, 1.0, [(self.name, 1.0)])

    def asked(found: httpx.Client) -> set[str]:
        answer = found.post("/predict", files=files(*[grey(1)] * 50)).json()
        return {one["name"] for one in answer["predictions"]}

    changing = Changing()
    with client(create_app(changing)) as found:
        assert asked(found) == {"1"}
        assert changing.number == 2  # batches: 32 images, and 18
        assert asked(found) == {"3"}
