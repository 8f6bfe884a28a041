"""SIGTERM ends a command as Ctrl-C does, with its line and the status of a killed command."""

import os
import signal
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from dafuse.cli import main
from helpers.product_models import files, taught

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")


def kill(*args: object) -> None:
    """Stop the process, in place of a step of a command."""
    os.kill(os.getpid(), signal.SIGTERM)
    signal.pause()


def status(command: list[str]) -> int:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit) as end:
            main(command)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)
    return int(end.value.code or 0)


@pytest.mark.usefixtures("small_network")
def test_a_change_that_is_ended_leaves_the_model_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model"
    taught(model, {0: 2, 1: 2}, method="lift")
    before = files(model)
    monkeypatch.setattr("dafuse.product.steps.now", kill)
    assert status(["rename", str(model), "class 0", "zero"]) == 128 + signal.SIGTERM
    assert capsys.readouterr().err == "dafuse: stopped; nothing changed\n"
    assert files(model) == before


def test_a_run_that_is_ended_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "dafuse.commands.run", SimpleNamespace(main=kill))
    assert status(["run"]) == 128 + signal.SIGTERM
    said = capsys.readouterr().err
    assert said == "dafuse: stopped; the same command goes on where it stopped\n"


@pytest.mark.parametrize("treated", [signal.SIG_IGN, lambda number, frame: None])
def test_what_a_caller_does_at_sigterm_stays(
    monkeypatch: pytest.MonkeyPatch, treated: signal.Handlers
) -> None:
    seen = []
    command = SimpleNamespace(info=lambda: seen.append(signal.getsignal(signal.SIGTERM)))
    monkeypatch.setitem(sys.modules, "dafuse.commands.info", command)
    before = signal.signal(signal.SIGTERM, treated)
    try:
        main(["info"])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [treated]


def test_commands_run_in_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the main thread may say what signals do."""
    seen = []

    def info(model: str, /) -> None:
        seen.append(model)

    monkeypatch.setitem(sys.modules, "dafuse.commands.info", SimpleNamespace(info=info))
    thread = threading.Thread(target=main, args=(["info", "model"],))
    thread.start()
    thread.join()
    assert seen == ["model"]


def test_a_process_that_was_forked_meanwhile_ends_without_a_word(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ended = []

    def fork() -> None:
        child = os.fork()
        if not child:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(1)
        ended.append(os.waitpid(child, 0)[1])

    monkeypatch.setitem(sys.modules, "dafuse.commands.info", SimpleNamespace(info=fork))
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        main(["info"])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert os.WTERMSIG(ended[0]) == signal.SIGTERM
    assert capfd.readouterr().err == ""
