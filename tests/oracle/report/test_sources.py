"""A user's file inside another script keeps its text, and loses only what the script has already."""

from __future__ import annotations

import pytest

from oracle.report.sources import attributes, imported, inlined

FILE = '''"""A task."""

from __future__ import annotations

import torch
from reference_loop.task import (
    Task,
)

SIZE, DEPTH = 4, 2  # both small


def model():
    """One layer."""
    return torch.nn.Linear(SIZE, 1)


task = Task(name="mine", model=model)

if __name__ == "__main__":
    model().train()
'''


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "task.py"
    path.write_text(FILE)
    return path


def test_only_what_the_script_has_already_is_left_out(file):
    found = inlined(file, replaced=("reference_loop.task",))
    assert found.body.startswith("import torch")
    assert "SIZE, DEPTH = 4, 2  # both small" in found.body
    assert all(word not in found.body for word in ("A task.", "__future__", "reference_loop", "__main__"))
    assert found.names == {"SIZE", "DEPTH", "model", "task"}
    assert found.modules == {"torch"}


def test_neighbours_stay_importable(file, tmp_path):
    (tmp_path / "layers.py").write_text("SIZE = 4\n")
    file.write_text(FILE.replace("import torch\n", "import torch\nfrom layers import SIZE\n"))
    assert f"sys.path.insert(0, {str(tmp_path)!r})  # layers" in inlined(file).body


def test_one_name_of_a_file_can_be_taken_by_its_path(file):
    file.write_text("class Trainer:\n    size = 3\n")
    space = {}
    exec(imported(file, "Trainer").body, space)
    assert space["Trainer"].size == 3


def test_attributes_are_those_of_anything(file):
    assert {"nn", "Linear", "train"} <= attributes(file)
