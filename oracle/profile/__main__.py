"""Write the profiles of the supported trainers: `python -m oracle.profile FOLDER`; `make profiles` runs it."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from oracle.profile.infer import infer
from oracle.profile.render import markdown, named, said, value
from oracle.profile.schema import Entry, Profile, from_dict
from oracle.releases import RELEASES
from oracle.result import write_text
from oracle.trainers import list_trainers

INTRO = """\
# Profiles

What `oracle semantics` found of each supported trainer, written by `make profiles`: a page and a JSON file each, and
`oracle diff` compares any two. A value is confirmed by a bit-identical replay, and by replays under all other values
that are not; where nothing tells them apart, it is undetermined, and the page says why.

A cell with several values holds those that are left; `?` is undetermined, `-` is a case that the profile does not have.
"""


def main(arguments: Sequence[str]) -> int:
    """Probe the trainers that begin as a word after the folder, all of them without one, and write their pages."""
    folder, names = Path(arguments[0]), tuple(arguments[1:])
    for trainer, requirements in RELEASES:
        label = " ".join(requirements)
        label = label if label.startswith(trainer) else f"{trainer} {label}".strip()
        if names and not label.startswith(names):
            continue
        print(f"profile: {label}", flush=True)
        found = infer(trainer, requirements=requirements, progress=lambda words: print(f"  {words}", flush=True))
        options = [option for requirement in requirements for option in ("--with", requirement)]
        command = shlex.join(["oracle", "semantics", "--trainer", trainer, *options])
        content = json.dumps(found.to_dict(), indent=1, ensure_ascii=False) + "\n"
        write_text(str(folder / f"{stem(found)}.md"), markdown(found, command))
        write_text(str(folder / f"{stem(found)}.json"), content)
    write_text(str(folder / "README.md"), index(profiles(folder)))
    return 0


def stem(profile: Profile) -> str:
    """What a profile's files are called: trainer and version."""
    package = next(one.package for one in list_trainers() if one.name == profile.trainer)
    return f"{profile.trainer}-{profile.versions[package]}"


def profiles(folder: Path) -> list[Profile]:
    """The profiles in a folder, by name."""
    return [from_dict(json.loads(file.read_text(encoding="utf-8"))) for file in sorted(folder.glob("*.json"))]


def index(found: Sequence[Profile]) -> str:
    """The page that stands before the profiles: every knob of every trainer in one table."""
    cases: dict[tuple[str, str | None, str | None], str] = {}
    for profile in found:
        cases.update({_case(entry): named(entry) for entry in profile.knobs})
    order = [entry.knob for profile in found for entry in profile.knobs]
    rows = [
        [f"`{name}`" if " (" not in name else f"`{name.partition(' (')[0]}` ({name.partition(' (')[2]}"]
        + [_cell(profile, case) for profile in found]
        for case, name in sorted(cases.items(), key=lambda item: (order.index(item[0][0]), item[1]))
    ]
    links = [f"[{stem(profile)}]({stem(profile)}.md)" for profile in found]
    numbers = sorted({number.name for profile in found for number in profile.numbers})
    rows += [[f"`hyperparameter.{name}`", *(_number(profile, name) for profile in found)] for name in numbers]
    table = [["", *links], ["---"] * (len(links) + 1), *rows]
    return INTRO + "\n" + "\n".join(f"| {' | '.join(row)} |" for row in table) + "\n"


def _case(entry: Entry) -> tuple[str, str | None, str | None]:
    return entry.knob, entry.asked, entry.model


def _cell(profile: Profile, case: tuple[str, str | None, str | None]) -> str:
    """What a profile says of a case; of a kind of model it may say what it says of every kind."""
    entries = {_case(entry): entry for entry in profile.knobs}
    entry = entries.get(case) or entries.get((case[0], case[1], None)) or entries.get((case[0], None, None))
    if entry is None:
        return "-"
    return "?" if entry.value is None and not entry.left else value(entry)


def _number(profile: Profile, name: str) -> str:
    used = [number for number in profile.numbers if number.name == name]
    words = [f"{said(number.trainer)}, where the recipe has {said(number.recipe)}" for number in used]
    return "; ".join(words) or "as stated"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
