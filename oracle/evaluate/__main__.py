"""Write the evaluations of docs/evaluations: `python -m oracle.evaluate FOLDER [NAME...]`; `make evaluations` runs it.

A page and an archive for each trainer, and a page of all of them side by side. The records lie in build/evaluations, so
an interrupted run goes on.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from oracle import trainers
from oracle.evaluate import archive, frame, scenario
from oracle.evaluate.session import baseline
from oracle.releases import newest
from oracle.report import evaluations
from oracle.result import write_text

RECORDS = Path("build/evaluations")
EVALUATED: dict[str, tuple[str, tuple[str, ...]]] = {
    "loop": (f"{baseline()}:Loop", ()),
    "house": (f"{baseline().parent / 'house.py'}:House", ()),
    **{name: (name, newest(name)) for name in ("accelerate", "transformers", "lightning")},
}
"""Of whom evaluations are: trainer and requirements."""

INTRO = """\
# Evaluations

What `oracle evaluate --scenario research` found, written by `make evaluations`: a page for each trainer, and an archive
that `oracle archive verify` checks and `oracle diff` compares with another. [method](../method.md) says what each row
proves. `loop` is the reference loop itself, `house` a trainer as a team writes one for itself.

"""


def main(arguments: Sequence[str]) -> int:
    """Evaluate the trainers that are named after the folder, all of them without one, and write their pages."""
    folder, names = Path(arguments[0]), tuple(arguments[1:])
    for name, (trainer, requirements) in EVALUATED.items():
        if names and name not in names:
            continue
        print(f"evaluating: {name}", flush=True)
        shown = f"fixtures/trainers/{Path(trainer).name}" if trainers.is_file(trainer) else trainer
        options = "".join(f" --with {requirement}" for requirement in requirements)
        asked = frame.Asked(
            trainer=trainer,
            scenario=scenario.load("research"),
            folder=RECORDS / name,
            requirements=requirements,
            dimensions=frame.dimensions(()),
            command=f"oracle evaluate --trainer {shown}{options} --scenario research",
        )
        found = frame.evaluate(asked, lambda words: print(f"  {words}", flush=True))
        archive.clear(asked.folder)
        page = evaluations.markdown(found)
        archive.seal(asked.folder, found, page)
        folder.mkdir(parents=True, exist_ok=True)
        archive.pack(asked.folder, folder / f"{name}.zip")
        write_text(folder / f"{name}.md", page)
    write_text(folder / "README.md", index(folder))
    return 0


def index(folder: Path) -> str:
    """The page that stands before the evaluations: their rows side by side."""
    files = [folder / f"{name}.zip" for name in EVALUATED if (folder / f"{name}.zip").is_file()]
    links = "".join(f"- [{file.stem}]({file.stem}.md)\n" for file in files)
    return f"{INTRO}{links}\n{evaluations.side_by_side([archive.read(file) for file in files])}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
