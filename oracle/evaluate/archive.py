"""The archive of an evaluation: one folder or zip that a later reader can verify, and compare with another."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from oracle import __version__
from oracle.errors import OutputError
from oracle.evaluate import check, conclusions, conditions, schema
from oracle.evaluate.evidence import Evidence
from oracle.evaluate.record import Record
from oracle.evaluate.scenario import Scenario
from oracle.evaluate.schema import Evaluation, EvaluationError, Row
from oracle.result import decode, encode, write_text

EVALUATION, MANIFEST, LOCK, REPORT = "evaluation.json", "archive.json", "lock.txt", "report.md"
EPOCH = (1980, 1, 1, 0, 0, 0)  # of every file in a zip: the same evaluation gives the same bytes


def seal(folder: Path, found: Evaluation, report: str) -> None:
    """Write what a reader needs beside the evaluation, and a digest of every file."""
    versions = found.surroundings["versions"]
    write_text(folder / LOCK, "".join(f"{name}=={version}\n" for name, version in versions.items()))
    write_text(folder / REPORT, report)
    files = {str(file.relative_to(folder)): _digest(file) for file in _files(folder)}
    content = {"archive": 1, "oracle": __version__, "command": found.command, "sha256": files}
    write_text(folder / MANIFEST, json.dumps(content, indent=1) + "\n")


def pack(folder: Path, to: Path) -> None:
    """A sealed folder as a zip, whole or not at all.

    Raises:
        OutputError: it cannot be written.
    """
    aside = to.with_name(f".{to.name}.writing")
    try:
        with zipfile.ZipFile(aside, "w", zipfile.ZIP_DEFLATED) as pack:
            for file in [*_files(folder), folder / MANIFEST]:
                entry = zipfile.ZipInfo(str(file.relative_to(folder)), EPOCH)
                entry.compress_type = zipfile.ZIP_DEFLATED
                pack.writestr(entry, file.read_bytes())
        aside.replace(to)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise OutputError(f"cannot write {to}: {error.strerror}: name a file in a writable folder") from error


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """The folder of an archive; a zip is unpacked for the block.

    Raises:
        EvaluationError: it is neither, or a zip with names that lead out of it.
    """
    if path.is_dir():
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="oracle-") as name:
        try:
            with zipfile.ZipFile(path) as pack:
                strange = [one for one in pack.namelist() if one.startswith("/") or ".." in Path(one).parts]
                if strange:
                    raise EvaluationError(f"{path}: a name that leads out of it: {strange[0]!r}")
                pack.extractall(name)
        except (OSError, zipfile.BadZipFile) as error:
            raise EvaluationError(f"{path}: a folder or zip of an evaluation was expected: {error}") from error
        yield Path(name)


def recognises(path: Path) -> bool:
    """Whether a file or folder is an evaluation's."""
    if path.is_dir():
        return (path / EVALUATION).is_file()
    if path.suffix == ".zip" and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as pack:
            return EVALUATION in pack.namelist()
    if path.suffix != ".json":
        return False
    with path.open(encoding="utf-8", errors="replace") as file:
        return '"evaluation"' in file.read(64)


def read(path: Path) -> Evaluation:
    """The evaluation in a folder, a zip, or its own JSON file. Raises EvaluationError, OSError."""
    if path.suffix == ".json":
        return schema.read(path)
    with unpacked(path) as folder:
        return schema.read(folder / EVALUATION)


def verify(path: Path) -> list[str]:
    """What is wrong with an archive, a sentence each; empty where it holds.

    Every file is the one that was sealed; every artifact that a row names is there; and the same checks, made of the
    stored artifacts, give the same rows and conclusions.

    Raises:
        EvaluationError: it is no archive.
    """
    with unpacked(path) as folder:
        if not (folder / MANIFEST).is_file():
            raise EvaluationError(f"{path} is no archive: it has no {MANIFEST}")
        sealed = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        there = {str(file.relative_to(folder)): _digest(file) for file in _files(folder)}
        wrong = [f"{name} is missing" for name in sorted(sealed["sha256"].keys() - there.keys())]
        wrong += [f"{name} was added" for name in sorted(there.keys() - sealed["sha256"].keys())]
        changed = [name for name in sorted(there) if sealed["sha256"].get(name, there[name]) != there[name]]
        wrong += [f"{name} is not what was sealed" for name in changed]
        if EVALUATION not in there:
            return wrong
        found = schema.read(folder / EVALUATION)
        for row in found.rows:
            lost = [name for name in row.artifacts if name not in there]
            wrong += [f"{row.name} names {name}, which is not there" for name in lost]
        if sealed["oracle"] == __version__ and not wrong:
            wrong += _again(folder, found)
        return wrong


def _again(folder: Path, found: Evaluation) -> Iterator[str]:
    """What the checks say otherwise of the stored artifacts than what is written."""
    scenario = decode(Scenario, found.scenario, "scenario")
    evidence = Evidence(Record(folder), scenario, found.surroundings)
    names = {row.name for row in found.rows}
    rows = [one.row(evidence) for one in check.every() if one.full_name in names]
    for row in found.rows:
        again = next((one for one in rows if one.name == row.name), None)
        if again is None or _plain(again) != _plain(row):
            yield f"{row.name} is not what its artifacts give: {again.says if again else 'there is no such check'}"
    words = conclusions.conclude(
        found.title, scenario, rows, found.left_out, found.observations, conditions.machine(found.surroundings)
    )
    if encode(words) != encode(found.conclusions):
        yield "the conclusions are not those of the rows"


def _plain(row: Row) -> Any:
    return json.loads(json.dumps(encode(row)))


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file() and file.name != MANIFEST)


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def clear(folder: Path) -> None:
    """Remove the traces, for an archive that is to be small."""
    shutil.rmtree(folder / "traces", ignore_errors=True)
