"""Records a recorded command again, in full around one place: digests say where two runs part, tensors say how far."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from diffs.first import differences
from diffs.trace import open_trace
from oracle import recording
from oracle.environment import Environment
from oracle.errors import OracleError
from oracle.recorder.session import Options
from oracle.report import phrases


def rerun(folder: Path, into: Path, update: int, kinds: Collection[str]) -> Path:
    """Run the command of a recording again where it ran, and keep what it trains in full at one update.

    folder: of the recording, or of one process in it. into: a new folder. update: below 0 for the beginning alone.
    Returns the folder of the same process's new trace.

    Raises:
        OracleError: the recording names no command, what it ran in is gone, or it trains otherwise now.
    """
    whole = folder if (folder / recording.SUMMARY).exists() else folder.parent
    facts = _facts(whole, folder)
    with open_trace(folder) as trace:
        digest = trace.digest
    options = Options(
        folder=str(into), level="full", first=max(update, 0), last=max(update, 0), kinds=tuple(sorted(kinds)),
        digest=digest, command=tuple(facts["argv"]),
    )  # fmt: skip
    found = recording.record(
        facts["argv"], options, _environment(facts, whole), directory=facts["directory"], aside=True
    )
    if found.exit_code != facts["exit_code"]:
        raise OracleError(
            f"--rerun: {whole}: its command ended with exit code {found.exit_code}, and with {facts['exit_code']} when "
            "it was recorded: record it again"
        )
    again = into if whole == folder else into / folder.name
    _check_same(folder, again)
    return again


def _facts(whole: Path, folder: Path) -> dict[str, Any]:
    """What `oracle record` wrote beside the traces."""
    try:
        facts = json.loads((whole / recording.SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OracleError(
            f"--rerun: {folder} has no {recording.SUMMARY} that says its command: only what oracle record made can be "
            "run again"
        ) from error
    if not facts.get("directory") or not Path(facts["directory"]).is_dir():
        place = facts.get("directory")
        raise OracleError(f"--rerun: {whole} was recorded in {place!r}, which is no folder: record it again")
    return facts


def _environment(facts: dict[str, Any], whole: Path) -> Environment | None:
    if facts.get("python") is None:
        return None
    layer = Path(facts["layer"]) if facts["layer"] else None
    if layer is not None and not layer.is_dir():
        raise OracleError(f"--rerun: {whole} was recorded with packages in {layer}, which is gone: record it again")
    return Environment(python=facts["python"], layer=layer, holds={}, versions={}, seconds=0.0)


def _check_same(folder: Path, again: Path) -> None:
    """Refuse a run that is not the recorded one: its tensors would explain another difference."""
    with open_trace(folder) as old, open_trace(again) as new:
        seen = {row.address.update for row in new.rows()}
        for found in differences(old, new):
            if found.reference is None or found.candidate is None or found.address.update not in seen:
                continue
            if found.decisive:
                raise OracleError(
                    f"--rerun: {folder}: its command trains otherwise now: {phrases.place(found.address)}: was the "
                    "script changed, or does it not repeat itself? Record it again"
                )
