"""`dafuse serve` as a process: it starts, answers and ends, and refuses what is unsafe."""

import re
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import parse_qs

import httpx
import pytest

from dafuse.cli import main
from dafuse.commands.serve import listen
from helpers.processes import clean_environment
from helpers.product_models import create, pictures
from helpers.served_apps import BEARER, TOKEN, files, learned, lesson, png, wait_for
from helpers.served_processes import address, process, stopped


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a model with the embedded backbone, which a process of its own can load."""
    path = tmp_path_factory.mktemp("served") / "model"
    create(path).learn(*pictures({0: 3, 1: 3}))
    return path


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_it_starts_answers_and_stops(model: Path, by: signal.Signals) -> None:
    images, _ = pictures({0: 1}, seed=3)
    with process(model) as run:
        url = address(run)
        assert httpx.get(f"{url}/healthz").json()["classes"] == 2
        with httpx.Client(base_url=url) as client:  # its connection stays open
            answer = client.post("/predict", files=files(png(images[0])))
            assert answer.status_code == 200
            large = client.post("/predict", files=files(bytes(40 * 2**20)))
            assert large.status_code == 413
            assert "32 MB" in large.json()["error"]
            assert client.post("/learn").status_code == 403
            out = stopped(run, by)
    assert out == "stopped\n"


def test_half_sent_heads_take_no_files_from_others(model: Path) -> None:
    with process(model, files_allowed=256) as run, ExitStack() as held:
        where = httpx.URL(address(run))
        for _ in range(300):
            half = held.enter_context(socket.create_connection((where.host, where.port or 0)))
            half.sendall(b"GET / HTTP/1.1\r\nX-Half:")
        for _ in range(20):
            assert httpx.get(f"{where}/healthz").status_code == 200
        assert stopped(run, signal.SIGTERM) == "stopped\n"  # and nothing on standard error


def test_teaching_makes_a_token_and_a_model_and_stops_within_a_lesson(tmp_path: Path) -> None:
    images, names = pictures({0: 8, 1: 8})
    with process(tmp_path / "new", "--allow-learn", "--method", "daf") as run:  # it takes its time
        url = address(run)
        assert run.stdout is not None
        found = re.search(r"#token=(\S+)", run.stdout.readline())
        assert found
        assert len(found[1]) >= 20
        headers = {"Authorization": f"Bearer {found[1]}"}
        assert httpx.get(f"{url}/classes").json()["classes"] == []
        for image, name in zip(images, names, strict=True):
            httpx.post(f"{url}/classes/{name}/images", files=files(png(image)), headers=headers)
        assert httpx.post(f"{url}/learn", headers=headers).status_code == 202
        wait_for(lambda: httpx.get(f"{url}/learn", headers=headers).json()["progress"] > 0)
        out = stopped(run, signal.SIGTERM)  # as Ctrl-C, which the other tests press
    assert out == (
        "stopped: the lesson was broken off, the model is as it was; "
        "16 images not yet learned are gone\n"
    )
    assert not (tmp_path / "new" / "model.json").exists()  # the lesson was broken off


def test_the_token_can_come_from_the_environment(model: Path) -> None:
    with process(model, "--allow-learn", DAFUSE_TOKEN="from-outside") as run:
        url = address(run)
        for token, status in (("from-outside", 200), ("another-token", 401)):
            headers = {"Authorization": f"Bearer {token}"}
            assert httpx.get(f"{url}/learn", headers=headers).status_code == status
        image = files(png(pictures({0: 1})[0][0]))
        headers = {"Authorization": "Bearer from-outside"}
        httpx.post(f"{url}/classes/new/images", files=image, headers=headers)
        out = stopped(run)
    assert out == "stopped: 1 image not yet learned is gone\n"
    assert "token" not in out  # whoever gave it knows it


def test_an_exported_file_is_served_without_torch(model: Path, tmp_path: Path) -> None:
    images, _ = pictures({0: 1, 1: 1}, seed=3)
    sent = files(*map(png, images))
    main(["export", str(model), str(tmp_path / "pets.onnx")])
    found = []
    for served, bare in ((model, False), (tmp_path / "pets.onnx", True)):
        with process(served, bare=bare) as run:
            url = address(run)
            found.append(httpx.post(f"{url}/predict", files=sent).json()["predictions"])
            known = httpx.get(f"{url}/classes").json()
            assert (len(known["classes"]), known["teaching"]) == (2, False)
            assert known["model"] == served.name
            stopped(run)
    for own, exported in zip(*found, strict=True):
        assert exported["name"] == own["name"]
        assert exported["probability"] == pytest.approx(own["probability"], abs=1e-3)


def test_a_model_is_taught_and_asked_without_torch(tmp_path: Path) -> None:
    new, _ = pictures({0: 1, 1: 1, 2: 1}, seed=3)
    with (
        process(tmp_path / "new", "--allow-learn", bare=True, DAFUSE_TOKEN=TOKEN) as run,
        httpx.Client(base_url=address(run), headers=BEARER) as asked,
    ):

        def answers() -> list[str]:
            found = asked.post("/predict", files=files(*map(png, new))).json()["predictions"]
            return [one["top"][0]["name"] for one in found]

        assert learned(asked, lesson({0: 8, 1: 8}))["state"] == "done"
        assert answers()[:2] == ["class 0", "class 1"]
        assert learned(asked, lesson({2: 8}, seed=1))["state"] == "done"
        assert answers() == ["class 0", "class 1", "class 2"]
        assert asked.delete("/classes/class 1").json()["classes"] == ["class 0", "class 2"]
        exported = asked.get("/export", timeout=60)
        assert exported.status_code == 200
        assert stopped(run) == "stopped\n"
    (tmp_path / "new.onnx").write_bytes(exported.content)
    with process(tmp_path / "new.onnx", bare=True) as run:
        assert httpx.get(f"{address(run)}/classes").json()["classes"] == ["class 0", "class 2"]


@pytest.mark.parametrize(
    ("learn", "given"), [(False, {}), (True, {}), (True, {"DAFUSE_TOKEN": "a+b&c=%20#d"})]
)
def test_the_browser_is_opened_with_the_token_in_the_fragment(
    model: Path, tmp_path: Path, learn: bool, given: dict[str, str]
) -> None:
    browser = tmp_path / "browser"  # which writes down what it is given
    browser.write_text('#!/bin/sh\ncd "${0%/*}"\necho "$1" > part\nmv part url\n')
    browser.chmod(0o755)
    arguments = [model, "--open", *(["--allow-learn"] if learn else [])]
    with process(*arguments, BROWSER=f"{browser} %s", **given) as run:
        url = address(run)
        wait_for((tmp_path / "url").exists)
        opened, _, fragment = (tmp_path / "url").read_text().strip().partition("#")
        assert opened == f"{url}/"
        assert bool(fragment) == learn
        if learn:
            token = parse_qs(fragment)["token"][0]  # as the page reads it
            headers = {"Authorization": f"Bearer {token}"}
            assert httpx.get(f"{url}/learn", headers=headers).status_code == 200
        stopped(run)


def test_where_there_is_no_browser_it_says_so(model: Path, tmp_path: Path) -> None:
    with process(model, "--open", BROWSER=str(tmp_path / "nothing %s"), PATH="", DISPLAY="") as run:
        url = address(run)
        assert run.stdout is not None
        assert run.stdout.readline() == f"no browser could be opened here: open {url} yourself\n"
        stopped(run)


def test_small_answers_are_not_held_back() -> None:
    """Nagle's algorithm costs a connection that stays open 40 ms for each answer."""
    with (
        listen("127.0.0.1", 0) as listening,
        socket.create_connection(listening.getsockname()),
        listening.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere"], "there is no model nowhere"),
        (["nowhere.onnx"], "there is no file nowhere.onnx"),
        (["nowhere", "--allow-learn", "--method", "lfit"], "did you mean lift?"),
        (["nowhere.onnx", "--allow-learn"], "learns no more"),
        (["nowhere.onnx", "--device", "cuda"], "runs on the cpu"),
        ([".", "--allow-learn"], "is no model and not empty"),
        (["{model}", "--host", "0.0.0.0"], "give a token"),
        (["{model}", "--host", "::", "--allow-learn"], "give a token"),
        (["{model}", "--host", "example.org"], "give a token"),
        (["{model}", "--token", "short"], "8 characters or more"),
        (["{model}", "--token", "with a space"], "no spaces"),
        (["{model}", "--max-files", "0"], "files must be a number above 0"),
        (["{model}", "--max-body-mb", "nan"], "--max-body-mb must be a number above 0"),
        (["{model}", "--queue", "3"], "has no place for the 64 files"),
        (["{model}", "--workers", "0"], "--workers must be at least 1"),
        (["{model}", "--workers", "9000"], "too many"),
        (["{model}", "--workers", "2", "--allow-learn"], "is taught in one process"),
        (["{model}", "--port", "99999"], "cannot listen"),
        (["{model}", "--host", "127.0.0.1", "--port", "{taken}"], "choose another with --port"),
    ],
)
def test_bad_input_is_one_clear_line(
    arguments: list[str], sentence: str, model: Path, capsys: pytest.CaptureFixture[str],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DAFUSE_TOKEN", raising=False)
    (tmp_path / "something").touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        filled = [one.format(model=model, taken=port) for one in arguments]
        with pytest.raises(SystemExit) as stop:
            main(["serve", "--port", "0", *filled])
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert sentence in line


def test_a_missing_extra_is_named(model: Path) -> None:
    hide = (
        "import sys; sys.modules['fastapi'] = None; from dafuse.cli import main; main(sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", hide, "serve", str(model)],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == "dafuse: serve needs fastapi: pip install 'dafuse[serve]'\n"
