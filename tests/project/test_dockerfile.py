"""The Dockerfile names what there is. There is no Docker here to build it: its commands are run."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from helpers.places import ROOT
from helpers.product_models import taught
from helpers.served_processes import address, process

parse = pytest.importorskip("dockerfile_parse", reason="dockerfile-parse is not installed")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture
def said() -> dict[str, list[str]]:
    """What the Dockerfile says, by instruction."""
    found: dict[str, list[str]] = {}
    for one in parse.DockerfileParser(str(ROOT / "Dockerfile")).structure:
        found.setdefault(one["instruction"], []).append(one["value"])
    return found


def test_it_is_based_on_a_python_that_dafuse_supports(said: dict[str, list[str]]) -> None:
    versions = {
        re.fullmatch(r"python:(3\.\d+)-slim-[a-z]+( AS build)?", one) for one in said["FROM"]
    }
    assert len(said["FROM"]) == 2
    for version in versions:
        assert version is not None
        assert f"Programming Language :: Python :: {version[1]}" in PROJECT["classifiers"]


def test_what_it_copies_is_there_and_not_ignored(said: dict[str, list[str]]) -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = {line.removeprefix("!") for line in lines if line.startswith("!")}
    assert "*" in lines
    for value in said["COPY"]:
        *sources, _ = value.split()
        assert set(sources) <= allowed
        assert all((ROOT / source).exists() for source in sources)
    built = {PROJECT["readme"], *PROJECT["license-files"], "pyproject.toml", "src"}
    assert allowed == built  # nothing that the build needs is missing


def test_it_installs_the_server_and_no_torch(said: dict[str, list[str]]) -> None:
    (extras,) = re.findall(r"dafuse-\*\.whl\)\[([^]]*)\]", " ".join(said["RUN"]))
    needed = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"][extras]]
    assert not any(one.startswith("torch") for one in needed)
    (user,) = said["USER"]
    assert user.split(":")[0].isdecimal()
    assert user != "0:0"


def test_its_command_serves_and_its_health_check_notices(
    said: dict[str, list[str]], tmp_path: Path
) -> None:
    (entry,), (command,) = map(json.loads, said["ENTRYPOINT"]), map(json.loads, said["CMD"])
    assert entry[0] in PROJECT["scripts"]
    assert command[0] == "serve"
    model = tmp_path / Path(command[1]).name
    taught(tmp_path / "model", {0: 2, 1: 2}).export(model)
    (check,) = re.findall(r"CMD (\[.*\])", said["HEALTHCHECK"][0])
    _, *code = json.loads(check)
    assert f"127.0.0.1:{said['EXPOSE'][0]}/" in code[-1]
    options = ["127.0.0.1" if one == "0.0.0.0" else one for one in command[2:]]
    with process(model, *options, DAFUSE_TOKEN="of-the-tests") as run:
        port = address(run).rpartition(":")[2]
        asked = [sys.executable, *code[:-1], code[-1].replace(said["EXPOSE"][0], port)]
        subprocess.run(asked, check=True, timeout=60)
    stopped = subprocess.run(asked, check=False, capture_output=True, timeout=60)
    assert stopped.returncode != 0
