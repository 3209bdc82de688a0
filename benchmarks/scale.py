"""What recording costs models and machines that no test here can hold: the arithmetic of `docs/scale.md`.

`python -m benchmarks.scale` prints the page's tables; its options take other figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace

import click


@dataclass(frozen=True)
class Figures:
    """What the calculation rests on. Times are of one rank.

    digest: seconds a byte of xxh3-128, one thread. row: seconds a recorded value, whatever its size; passed: one that
    is not kept. address: bytes of a trace a recorded value. copy: seconds a byte from the device to the host's memory.
    flops: of one device, in the precision that is trained in. used: the share of them that training reaches.
    tokens: of one rank and update. goal: the share of an update's time that recording may take.
    """

    digest: float = 0.08e-9
    row: float = 12e-6
    passed: float = 1.5e-6
    address: float = 56.0
    copy: float = 0.125e-9
    flops: float = 989e12
    used: float = 0.4
    tokens: float = 16384.0
    goal: float = 0.03


@dataclass(frozen=True)
class Model:
    """Parameters, how many tensors they are, and the elements of the largest."""

    name: str
    parameters: int
    tensors: int
    largest: int


@dataclass(frozen=True)
class Kept:
    """What of an update is recorded: `--kinds`, the bytes that are read a parameter, and the rows a tensor.

    Parameters, gradients and AdamW's two moments are in float32.
    """

    name: str
    kinds: str
    bytes: int
    rows: int


@dataclass(frozen=True)
class Setting:
    """How a model is trained. sharded: each rank holds its share alone."""

    model: Model
    ranks: int
    sharded: bool
    figures: Figures = field(default_factory=Figures)

    @property
    def share(self) -> float:
        """Of the parameters, on one rank."""
        return 1 / self.ranks if self.sharded else 1.0

    @property
    def state(self) -> float:
        """Bytes of parameters, gradients and AdamW's moments on one rank."""
        return 16 * self.model.parameters * self.share

    @property
    def step(self) -> float:
        """Seconds an update takes unrecorded: six operations a parameter and token."""
        figures = self.figures
        return 6 * self.model.parameters * figures.tokens / (figures.flops * figures.used)

    def seconds(self, kept: Kept) -> float:
        """What recording one update adds on each rank; all ranks spend it at the same time."""
        read = kept.bytes * self.model.parameters * self.share
        rows = kept.rows * self.model.tensors * self.figures.row
        return read * (self.figures.copy + self.figures.digest) + rows + self.passed(ALL.rows - kept.rows)

    def passed(self, rows: int) -> float:
        """Seconds that values take that are not kept. rows: of each tensor."""
        return rows * self.model.tensors * self.figures.passed

    def written(self, kept: Kept) -> float:
        """Bytes that one rank writes for one update."""
        return kept.rows * self.model.tensors * self.figures.address

    def every(self, kept: Kept) -> int:
        """The smallest `--every N` that keeps recording under the goal: one update in N is kept, the others passed."""
        between = self.passed(ALL.rows)
        return max(1, math.ceil((self.seconds(kept) - between) / (self.figures.goal * self.step - between)))

    @property
    def memory(self) -> float:
        """Bytes of the host's memory that recording takes beside rows: a copy of the largest tensor on the rank."""
        return 4 * self.model.largest * self.share


# Llama 2's: 9 tensors a layer, and 3 more; the largest is the embedding.
MODELS = (Model("7B", 6_738_415_616, 291, 32000 * 4096), Model("70B", 68_976_648_192, 723, 32000 * 8192))
RANKS = (8, 1024)
# Rows a tensor: its gradient after the backward, that which is taken, the parameter, step and two moments, two rates.
ALL = Kept("all", "", 20, 8)
KEPT = (
    ALL,
    Kept("state", "consume.gradient,update.parameter,optimizer_state", 16, 5),
    Kept("gradients", "consume.gradient", 4, 1),
    Kept("parameters", "update.parameter", 4, 1),
)
HELD = 141e9
"""Bytes of the largest device's memory that is thought of; state that is larger is not held by one rank."""


def settings(figures: Figures) -> Iterator[Setting]:
    """Every model on every number of ranks, replicated and sharded."""
    for model in MODELS:
        for sharded in (False, True):
            for ranks in RANKS:
                yield Setting(model, ranks, sharded, figures)


def page(figures: Figures) -> str:
    """Both tables, as Markdown."""
    first = [["model", "parallel", "ranks", "state a rank", "update", "host memory"]]
    second = [
        ["model, ranks", "kept", "read", "an update takes", "of an update", "written", "by all ranks", "under 3 %"]
    ]
    for one in settings(figures):
        kind = "sharded" if one.sharded else "DDP"
        fits = "" if one.state <= HELD else ", more than a device holds"
        first.append(
            [one.model.name, kind, f"{one.ranks:,}", f"{_size(one.state)}{fits}", _time(one.step), _size(one.memory)]
        )
        if fits:
            continue
        for kept in KEPT:
            seconds, every = one.seconds(kept), one.every(kept)
            second.append(
                [
                    f"{one.model.name} {kind} {one.ranks:,}",
                    kept.name,
                    _size(kept.bytes * one.model.parameters * one.share),
                    _time(seconds),
                    _share(seconds / one.step),
                    _size(one.written(kept)),
                    _size(one.written(kept) * one.ranks),
                    "each update" if every == 1 else f"`--every {every}`",
                ]
            )
    return f"{_table(first)}\n{_table(second)}"


def _table(rows: Sequence[Sequence[str]]) -> str:
    first, *rest = rows
    return "".join(f"| {' | '.join(row)} |\n" for row in [first, ["---"] * len(first), *rest])


def _size(number: float) -> str:
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= scale:
            return f"{number / scale:.3g} {unit}"
    return f"{number:.0f} B"


def _share(number: float) -> str:
    return f"{number:,.0%}" if number >= 1 else f"{number:.1%}"


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


@click.command()
@click.pass_context
def main(context: click.Context, **given: float) -> None:
    """Print the tables of docs/scale.md, with figures of your own where they are given."""
    click.echo(page(replace(Figures(), **{name: value for name, value in given.items() if value is not None})))


main.params += [
    click.Option([f"--{one.name}"], type=float, help=f"[default: {one.default:g}]") for one in fields(Figures)
]

if __name__ == "__main__":
    main()
