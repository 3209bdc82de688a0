"""What a checkpoint holds of what a resume needs, what each absence will do, and whether it is safe to load."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from diffs.checkpoints import archive
from diffs.checkpoints.checkpoint import PARTS, TITLES, Checkpoint, Part
from diffs.checkpoints.formats import open_checkpoint
from diffs.checkpoints.stored import Damaged, Unsafe
from diffs.render import count
from oracle.errors import OracleError
from oracle.report.checkpoints import size

SCHEMA = 1

Status = Literal["present", "partial", "derived", "absent"]

# What a resume does without a part.
ABSENT = {
    "parameter": "the model starts again from its initial weights",
    "optimizer": "momentum and averages start again from zero: the next updates are others (plain SGD has none)",
    "scheduler": "the learning rate starts again from the beginning of its schedule, warm-up included",
    "scaler": "in float16 the loss scale starts again from its initial value; other precisions use none, and lose none",
    "rng": "dropout, augmentation and shuffling draw other numbers than the uninterrupted run",
    "order": "a shuffled epoch that was broken off goes on in another order: samples come twice, others never",
    "cursor": "an epoch that was broken off starts again at its first batch",
    "counter": "updates and epochs count from 0: the run trains too long, and schedules, logs and saves shift",
    "accumulated_gradient": "saved in the middle of a window, its micro-batches are lost; after an update, none is",
    "ema": "the average starts again from the current weights (a run without one loses nothing)",
}
# What only some runs have: their absence alone does not make a checkpoint incomplete.
OPTIONAL = frozenset({"scaler", "accumulated_gradient", "ema"})
GENERATORS = {
    "python": "Python's random",
    "numpy": "numpy's",
    "torch": "torch's on the CPU",
    "cuda": "the devices'",
}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What is to be said of one part.

    part: its name. status: "present"; "partial": something of it is lacking; "derived": the trainer works it out anew;
        "absent". tensors, nbytes: how much of it is there. says: what is there, or what its absence does.
    """

    part: str
    status: Status
    tensors: int = 0
    nbytes: int = 0
    says: str = ""

    @property
    def lacking(self) -> bool:
        """Whether a resume misses something that every run has."""
        return self.status in ("absent", "partial") and self.part not in OPTIONAL


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What an audit found.

    path, format: of the checkpoint; the format is empty if it was refused before it was known.
    entries: one for each part that a resume may need, in the order of `PARTS`.
    safe: "yes": loading it makes tensors and plain data alone. "imports": it imports and calls classes that it names.
        "no": it calls functions, or names modules that no data needs. safety: why, a sentence each.
    foreign: for each file, the classes and functions that loading it would import. notes: what else is worth knowing.
    """

    path: Path
    format: str
    entries: tuple[Entry, ...]
    safe: Literal["yes", "imports", "no"]
    safety: tuple[str, ...]
    foreign: dict[str, tuple[str, ...]]
    notes: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether a resume finds, or works out, every part that every run has."""
        return bool(self.entries) and not any(entry.lacking for entry in self.entries)

    @property
    def exit_code(self) -> int:
        """0: a resume finds what it needs; 1: it does not, or loading calls functions."""
        return 0 if self.complete and self.safe != "no" else 1

    @property
    def headline(self) -> str:
        """The audit in one line."""
        danger = f"; loading {', '.join(self.foreign)} imports what it names" if self.foreign else ""
        if not self.entries:
            return "REFUSED: loading it would run code"
        if self.complete:
            return f"COMPLETE: a resume finds every part that it needs{danger}"
        lacking = ", ".join(TITLES[entry.part] for entry in self.entries if entry.lacking)
        return f"INCOMPLETE: a resume lacks {lacking}{danger}"

    def to_dict(self) -> dict[str, Any]:
        """The audit as JSON. `docs/checkpoints.md` describes it."""
        return {
            "schema": SCHEMA,
            "command": "audit",
            "path": str(self.path),
            "format": self.format,
            "complete": self.complete,
            "safe": self.safe,
            "safety": list(self.safety),
            "foreign": {name: list(names) for name, names in self.foreign.items()},
            "parts": [asdict(entry) for entry in self.entries],
            "notes": list(self.notes),
        }


def audit(path: Path) -> Audit:
    """Audit the checkpoint in a file or folder. Nothing in it is run, and every record that has a checksum is checked.

    Raises:
        OracleError: nothing lies there. NotComparable: it is no checkpoint, or damaged, with the place.
    """
    if not path.exists():
        raise OracleError(f"there is no file or folder {str(path)!r}: name a checkpoint")
    try:
        checkpoint = open_checkpoint(path)
    except Unsafe as error:
        return Audit(path=path, format="", entries=(), safe="no", safety=(f"no: {error}",), foreign={})
    root = path if path.is_dir() else path.parent
    for file in checkpoint.files:
        if file.kind == "torch.save" and (broken := archive.broken_record(root / file.name)):
            raise Damaged(
                f"{root / file.name}: the checksum of {broken} does not fit: it was changed after it was saved"
            )
    foreign = {file.name: file.foreign for file in checkpoint.files if file.foreign}
    return Audit(
        path=path,
        format=checkpoint.format,
        entries=tuple(_entry(checkpoint, part) for part in PARTS if part in ABSENT),
        safe="imports" if foreign else "yes",
        safety=tuple(_safety(foreign)),
        foreign=foreign,
        notes=tuple(_notes(checkpoint)),
    )


def _safety(foreign: dict[str, tuple[str, ...]]) -> Iterator[str]:
    if not foreign:
        yield "yes: tensors and plain data alone"
        return
    for name, names in foreign.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield f"as far as what {name} names: {names[0]}{more}; loading imports and calls it"
    yield "nothing of it was imported here"


def _entry(checkpoint: Checkpoint, name: str) -> Entry:
    part = checkpoint.parts.get(name)
    if part is None:
        if name in checkpoint.derived:
            return Entry(part=name, status="derived", says=checkpoint.derived[name])
        place = "" if name in checkpoint.holds else f" ({checkpoint.format} has no place for it)"
        return Entry(part=name, status="absent", says=ABSENT[name] + place)
    nbytes = sum(tensor.nbytes for tensor in part.tensors.values())
    says = f"{count(len(part.tensors), 'tensor')}, {size(nbytes)}" if part.tensors else _values(part)
    lacking = {"rng": _lacking_generators, "optimizer": _lacking_state}.get(name, lambda *_: None)(checkpoint, part)
    lacking = lacking or checkpoint.partial.get(name)
    return Entry(
        part=name,
        status="partial" if lacking else "present",
        tensors=len(part.tensors),
        nbytes=nbytes,
        says=lacking or (_generators(part) if name == "rng" else says),
    )


def _values(part: Part) -> str:
    names = list(part.plain)
    shown = ", ".join(
        f"{name} {value}" if isinstance(value := part.plain[name], (int, float, str)) and len(str(value)) < 20 else name
        for name in names[:4]
    )
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"


def _held_generators(part: Part) -> set[str]:
    """The kinds of generators of which some state is there, whichever rank or device it belongs to."""
    words = {word for name in (*part.tensors, *part.plain) for word in name.split(".")}
    return {kind for kind in GENERATORS if kind in words}


def _generators(part: Part) -> str:
    held = _held_generators(part)
    said = ", ".join(GENERATORS[kind] for kind in GENERATORS if kind in held) or _values(part)
    return said if "cuda" in held else f"{said}; no device's: needed where a model with dropout is trained on one"


def _lacking_generators(checkpoint: Checkpoint, part: Part) -> str | None:
    held = _held_generators(part)
    lacking = [GENERATORS[kind] for kind in ("python", "numpy", "torch") if kind not in held]
    return f"lacks {', '.join(lacking)} generator: what draws from it draws other numbers" if held and lacking else None


def _lacking_state(checkpoint: Checkpoint, part: Part) -> str | None:
    """What is said of an optimizer that has state for fewer parameters than its groups list."""
    groups = [group for group in part.plain.get("groups", ()) if isinstance(group, dict)]
    listed = [str(name) for group in groups for name in group.get("parameters", ())]
    held = {name.rpartition(".")[0] for name in part.tensors}
    lacking = [name for name in listed if name not in held and not part.plain.get(name)]
    if not lacking or not held:
        return None
    how_many = f"{len(lacking)} of {count(len(listed), 'parameter')}"
    return f"no state for {how_many}, the first is {lacking[0]}: theirs starts from zero"


def _notes(checkpoint: Checkpoint) -> Iterator[str]:
    yield from checkpoint.notes
    optimizer = checkpoint.parts.get("optimizer")
    if optimizer is not None and optimizer.by_index:
        yield (
            "the optimizer numbers its parameters, and which is which is not certain from the file: a model whose "
            "parameters are registered in another order takes up the wrong state, without a word"
        )
    if checkpoint.unread:
        shown = ", ".join(checkpoint.unread[:5])
        more = f" and {len(checkpoint.unread) - 5} more" if len(checkpoint.unread) > 5 else ""
        yield f"not read: {shown}{more}"
