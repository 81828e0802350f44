"""The kit is tested: each plugin with one fault fails a case, and the same plugin without it none."""

import pathlib

import pytest
import torch_backplane

from conformance import mutants

PACKAGE = pathlib.Path(torch_backplane.__file__).parent
REFERENCE = PACKAGE / "plugins" / "libbackplane_reference.so"
NAMES = [name for name in mutants.names() if name not in mutants.HARMLESS]


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    return mutants.build(PACKAGE, tmp_path_factory.mktemp("mutant"))


def test_there_are_enough():
    assert len(NAMES) >= 80


@pytest.mark.long
def test_the_plugin_itself_is_right(library, tmp_path):
    assert mutants.killer(library, REFERENCE, "none", tmp_path) is None


@pytest.mark.parametrize("name", NAMES[::9])
def test_mutant_is_killed(library, name, tmp_path):
    assert mutants.killer(library, REFERENCE, name, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in NAMES if name not in NAMES[::9]])
def test_every_mutant_is_killed(library, name, tmp_path):
    assert mutants.killer(library, REFERENCE, name, tmp_path)
