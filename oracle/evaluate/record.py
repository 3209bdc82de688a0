"""The record of an evaluation: a folder that grows step by step, and from which an interrupted one goes on."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from oracle.errors import OutputError
from oracle.evaluate.schema import EvaluationError
from oracle.result import encode, write_text

BEGUN = "begun.json"
ARTIFACTS = "artifacts"


class Record:
    """One evaluation's folder.

    folder: made if it is not there.

    Raises:
        OutputError: it cannot be made, or holds something else.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            (folder / ARTIFACTS).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"cannot make {folder}: {error.strerror}: name a folder that can be written") from error

    def begin(self, asked: dict[str, Any]) -> bool:
        """Note what is evaluated under which conditions; returns whether it was begun before.

        Raises:
            EvaluationError: what was begun there is something else; says what differs.
        """
        file = self.folder / BEGUN
        asked = json.loads(json.dumps(encode(asked)))
        if not file.exists():
            write_text(file, json.dumps(asked, indent=1) + "\n")
            return False
        before = json.loads(file.read_text(encoding="utf-8"))
        other = sorted(key for key in before.keys() | asked.keys() if before.get(key) != asked.get(key))
        if other:
            raise EvaluationError(
                f"{self.folder} holds an evaluation begun with another {', '.join(other)}: "
                "numbers under different conditions do not go together: name another folder with -o"
            )
        return True

    def path(self, name: str) -> str:
        """Where an artifact lies, relative to the folder."""
        return f"{ARTIFACTS}/{name.replace(' ', '-')}.json"

    def has(self, name: str) -> bool:
        """Whether an artifact is there."""
        return (self.folder / self.path(name)).is_file()

    def write(self, name: str, content: dict[str, Any]) -> None:
        """Write an artifact, whole or not at all."""
        text = json.dumps(encode(content), ensure_ascii=False, allow_nan=False) + "\n"
        write_text(self.folder / self.path(name), text)

    def read(self, name: str) -> dict[str, Any]:
        """An artifact's content."""
        return json.loads((self.folder / self.path(name)).read_text(encoding="utf-8"))


def digest(content: Any) -> str:
    """A short name for plain data, the same for the same data."""
    text = json.dumps(encode(content), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
