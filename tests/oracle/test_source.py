"""The digest of our source changes with a file of it, and with nothing else."""

from __future__ import annotations

import shutil

from oracle import source


def test_a_changed_file_is_another_source(root, tmp_path, monkeypatch) -> None:
    for name in (*source.PACKAGES, "fixtures"):
        shutil.copytree(root / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "zoo"))
    monkeypatch.setattr(source, "ROOT", tmp_path)
    monkeypatch.setattr("oracle.tasks.ROOT", tmp_path)
    before = source.digest.__wrapped__()
    (tmp_path / "fixtures" / "README.md").write_text("other words")
    assert source.digest.__wrapped__() == before
    for file in ("oracle/check.py", "fixtures/recipes/tokens.toml", "diffs/checkpoints/windows.py"):
        (tmp_path / file).write_text((tmp_path / file).read_text() + "\n")
        before, after = source.digest.__wrapped__(), before
        assert before != after
