"""Whatever writes into a workdir is seen, by its last name and with its size; what is elsewhere is not."""

from __future__ import annotations

import os

import pytest
import torch

from oracle.resume.saves import Saves


@pytest.fixture
def saves(tmp_path):
    (tmp_path / "work").mkdir()
    place = [0, 0]
    watched = Saves(tmp_path / "work", lambda: tuple(place))
    watched.where = place
    watched.watch()
    yield watched
    watched.stop()


def seen(saves):
    return [(file.path, file.bytes) for file in saves.settle()]


def test_a_plain_file_is_seen_with_its_size(saves, tmp_path):
    (tmp_path / "work" / "state.json").write_text("12345")
    (tmp_path / "elsewhere.json").write_text("1")
    (tmp_path / "work" / "state.json").read_text()
    assert seen(saves) == [("state.json", 5)]
    assert seen(saves) == []


def test_what_torch_and_safetensors_write_in_native_code_is_seen(saves, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    torch.save({"a": torch.zeros(100)}, tmp_path / "work" / "state.pt")
    safetensors.save_file({"a": torch.zeros(100)}, tmp_path / "work" / "model.safetensors")
    assert [path for path, _ in seen(saves)] == ["state.pt", "model.safetensors"]
    assert all(file.bytes >= 400 for file in saves.files)


def test_a_file_is_known_by_the_last_name_that_it_had(saves, tmp_path):
    work = tmp_path / "work"
    (work / "aside").mkdir()
    (work / "aside" / "part").write_text("abc")
    os.replace(work / "aside" / "part", work / "aside" / "state")
    os.rename(work / "aside", work / "step_1")
    assert seen(saves) == [("step_1/state", 3)]


def test_files_are_counted_anew_at_each_place(saves, tmp_path):
    for updates, micro, name in [(1, 0, "a"), (1, 0, "b"), (1, 1, "c"), (2, 0, "a")]:
        saves.where[:] = updates, micro
        (tmp_path / "work" / name).write_text("x")
    assert [(file["updates"], file["micro"], file["order"]) for file in saves.plain()] == [
        (1, 0, 0), (1, 0, 1), (1, 1, 0), (2, 0, 0),
    ]  # fmt: skip


def test_a_change_can_be_refused_before_it_happens(saves, tmp_path):
    def refuse(path):
        raise PermissionError(path)

    saves.changing = refuse
    for change in (lambda path: path.write_text("x"), os.mkdir, lambda path: torch.save({}, path)):
        with pytest.raises(PermissionError):
            change(tmp_path / "work" / "new")
    assert list((tmp_path / "work").iterdir()) == [] and saves.files == []
    (tmp_path / "free").mkdir()


def test_after_the_end_nothing_is_seen(saves, tmp_path):
    saves.stop()
    (tmp_path / "work" / "late").write_text("x")
    torch.save({}, tmp_path / "work" / "late.pt")
    assert saves.files == []
