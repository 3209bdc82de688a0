from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from diffs.checkpoints import archive
from diffs.checkpoints.checkpoint import split
from diffs.checkpoints.stored import Damaged, Span


def same(loaded: Any, saved: Any) -> bool:
    """Whether what was read lazily is what was saved: tensors and the rest."""
    (ours, plain), (theirs, other) = split(loaded), split(saved)
    return (
        plain == other
        and ours.keys() == theirs.keys()
        and all(torch.equal(ours[n].tensor(), theirs[n].tensor()) for n in ours)
    )


@pytest.mark.parametrize("zipped", [True, False])
def test_what_torch_saved_is_read_back(tmp_path: Path, saved: dict[str, Any], zipped: bool) -> None:
    torch.save(saved, tmp_path / "x.pt", _use_new_zipfile_serialization=zipped)
    loaded, foreign = archive.load(tmp_path / "x.pt")
    assert same(loaded, saved) and not foreign


@pytest.mark.parametrize("zipped", [True, False])
def test_views_are_read_as_they_are(tmp_path: Path, zipped: bool) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    views = {
        "transposed": base.t(),
        "row": base[2],
        "column": base[:, 1],
        "part": base[1:3, 2:4],
        "whole": base,
        "expanded": torch.ones(1).expand(5),
        "empty": base[:0],
        "scalar": base[1, 1],
        "parameter": torch.nn.Parameter(base),
        "half": base.to(torch.bfloat16),
        "complex": torch.view_as_complex(base.clone().reshape(4, 3, 2)),
    }
    torch.save(views, tmp_path / "x.pt", _use_new_zipfile_serialization=zipped)
    loaded, _ = archive.load(tmp_path / "x.pt")
    for name, view in views.items():
        assert torch.equal(loaded[name].tensor(), view.detach()), name
        assert loaded[name].shape == tuple(view.shape)


def test_tied_tensors_are_the_same_memory(tmp_path: Path) -> None:
    weight = torch.ones(3)
    torch.save({"a": weight, "b": weight, "c": weight.clone()}, tmp_path / "x.pt")
    loaded, _ = archive.load(tmp_path / "x.pt")
    assert loaded["a"].place == loaded["b"].place != loaded["c"].place


def test_an_archive_inside_a_file_is_read(tmp_path: Path, saved: dict[str, Any]) -> None:
    content = io.BytesIO()
    torch.save(saved, content)
    (tmp_path / "x").write_bytes(b"before" + content.getvalue() + b"after")
    loaded, _ = archive.load(tmp_path / "x", Span(str(tmp_path / "x"), 6, len(content.getvalue())))
    assert same(loaded, saved)


@pytest.mark.parametrize(("kept", "name"), [(0.95, "last"), (0.5, "middle"), (0.1, "first")])
def test_a_cut_archive_is_named_with_the_tensor_where_it_breaks(tmp_path: Path, kept: float, name: str) -> None:
    torch.save(
        {"first": torch.zeros(10_000), "middle": torch.zeros(10_000), "last": torch.zeros(10_000)}, tmp_path / "x"
    )
    whole = (tmp_path / "x").read_bytes()
    (tmp_path / "x").write_bytes(whole[: int(len(whole) * kept)])
    with pytest.raises(Damaged, match=f"ends at byte {int(len(whole) * kept):,} .* breaks in the tensor '{name}'"):
        archive.load(tmp_path / "x")


def test_a_cut_older_file_is_named_with_its_storage(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(1000)}, tmp_path / "x", _use_new_zipfile_serialization=False)
    (tmp_path / "x").write_bytes((tmp_path / "x").read_bytes()[:-100])
    with pytest.raises(Damaged, match="inside the storage"):
        archive.load(tmp_path / "x")


def rezipped(source: Path, target: Path, compression: int, **content: bytes) -> Path:
    """An archive with other compression, and some records replaced."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", compression) as new:
        for record in old.infolist():
            name = record.filename.partition("/")[2]
            new.writestr(record.filename, content.get(name.replace("/", "_"), old.read(record.filename)))
    return target


def test_a_zip_bomb_is_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(1)}, tmp_path / "x.pt")
    bomb = rezipped(tmp_path / "x.pt", tmp_path / "bomb.pt", zipfile.ZIP_DEFLATED, data_0=bytes(100 << 20))
    assert bomb.stat().st_size < 1 << 20
    with pytest.raises(Damaged, match=r"bomb\.pt: the record .* is compressed"):
        archive.load(bomb)


def test_a_storage_too_small_for_its_tensor_is_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(100)}, tmp_path / "x.pt")
    small = rezipped(tmp_path / "x.pt", tmp_path / "small.pt", zipfile.ZIP_STORED, data_0=bytes(8))
    with pytest.raises(Damaged, match="'data/0' has 8 bytes, its tensors need 400"):
        archive.load(small)


def test_a_flipped_bit_is_found_by_the_checksum(tmp_path: Path) -> None:
    torch.save({"first": torch.zeros(1000), "second": torch.ones(1000)}, tmp_path / "x.pt")
    assert archive.broken_record(tmp_path / "x.pt") is None
    loaded, _ = archive.load(tmp_path / "x.pt")
    content = bytearray((tmp_path / "x.pt").read_bytes())
    content[loaded["second"].spans[0].start + 5] ^= 1
    (tmp_path / "x.pt").write_bytes(content)
    assert archive.broken_record(tmp_path / "x.pt") == "the record 'data/1', the tensor 'second'"


def test_a_zip_archive_of_something_else_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as file:
        file.writestr("a/b.txt", "text")
    with pytest.raises(Damaged, match=r"without data\.pkl"):
        archive.load(tmp_path / "x.zip")
