"""tests/ is laid out as src/dafuse: whoever looks for a module's tests finds them by its folder."""

import pytest

from helpers.places import ROOT

TESTS, SOURCE = ROOT / "tests", ROOT / "src" / "dafuse"
OF_THEIR_OWN = {"project", "light", "faults"}  # CONTRIBUTING.md says what is in them
FILES = [
    file.relative_to(TESTS)
    for file in TESTS.rglob("test_*.py")
    if file.relative_to(TESTS).parts[0] not in OF_THEIR_OWN
]


@pytest.mark.parametrize("folder", sorted({file.parent for file in FILES}), ids=str)
def test_each_folder_of_tests_is_one_of_the_package(folder) -> None:
    assert (SOURCE / folder).is_dir()


def test_a_test_beside_the_folders_is_of_a_module_beside_them() -> None:
    modules = [SOURCE / file.name.removeprefix("test_") for file in FILES if not file.parent.name]
    assert len(modules) > 3
    assert not [str(module) for module in modules if not module.is_file()]
