"""Which of a package's names that a script uses changed from one version to the next: context for what training shows.

Read from both versions' source by griffe, which imports nothing of them. Only what a script names counts: the names
that it imports, and of these the members and arguments that it writes, or defaults that it leaves alone.
"""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import griffe

from oracle.environment import Environment

DEFAULTS = (griffe.BreakageKind.PARAMETER_CHANGED_DEFAULT, griffe.BreakageKind.ATTRIBUTE_CHANGED_VALUE)
MOST = 12  # changes that are told


@dataclass(frozen=True)
class Use:
    """What a script uses. imported: (package, name) pairs. words: every name, attribute and keyword in it."""

    imported: frozenset[tuple[str, str]]
    words: frozenset[str]


def changed(scripts: Iterable[Path], old: Environment, new: Environment) -> list[str]:
    """One line for each change, at most `MOST`; none where the scripts use nothing that differs.

    scripts: Python files; one that cannot be read uses nothing.
    """
    use = used(scripts)
    found: list[str] = []
    for package, name in sorted(use.imported):
        if old.versions.get(_distribution(package)) == new.versions.get(_distribution(package)):
            continue
        before, after = (_module(where, package, name) for where in (old, new))
        if before is None or after is None or name not in before.members:
            continue
        if name not in after.members:
            found.append(f"{package}.{name}: removed")
            continue
        found += (_line(package, change) for change in griffe.find_breaking_changes(before, after)
                  if _concerns(change, name, use))  # fmt: skip
    told = list(dict.fromkeys(found))
    return [*told[:MOST], *([f"and {len(told) - MOST} more"] if len(told) > MOST else [])]


def used(scripts: Iterable[Path]) -> Use:
    """What Python files import by name, and every word in them."""
    imported: set[tuple[str, str]] = set()
    words: set[str] = set()
    for script in scripts:
        try:
            tree = ast.parse(script.read_text(encoding="utf-8"))
        except (OSError, ValueError, SyntaxError):
            continue
        modules: dict[str, str] = {}
        for node in ast.walk(tree):
            match node:
                case ast.ImportFrom(module=str(module), names=names, level=0):
                    imported |= {(module.partition(".")[0], one.name) for one in names}
                case ast.Import(names=names):
                    modules |= {one.asname or one.name: one.name for one in names}
                case ast.Attribute(value=ast.Name(id=module), attr=name) if module in modules:
                    imported.add((modules[module].partition(".")[0], name))
                    words.add(name)
                case ast.Attribute(attr=name) | ast.Name(id=name):
                    words.add(name)
                case ast.keyword(arg=str(name)) | ast.Constant(value=str(name)):
                    words.add(name)
    return Use(frozenset(imported), frozenset(words))


def scripts_of(words: Sequence[str]) -> list[Path]:
    """The Python files of a command."""
    return [Path(word) for word in words if word.endswith(".py") and Path(word).is_file()]


def _distribution(package: str) -> str:
    return package.replace("_", "-").lower()


def _module(where: Environment, package: str, name: str) -> Any:
    """The module of a package that defines a name, or could, as griffe reads it; None where the source is not found."""
    for folder in (where.layer, Path(sysconfig.get_path("purelib"))):
        if folder is not None and (folder / package / "__init__.py").is_file():
            return _defining(folder, package, name)
    return None


def _defining(folder: Path, package: str, name: str) -> Any:
    """Follows imports from the package's own file to the one that defines the name."""
    module = package
    for _ in range(8):
        file = _file(folder, module)
        if file is None:
            return None
        visited = griffe.visit(
            module, file, file.read_text(encoding="utf-8"), extensions=griffe.load_extensions("dataclasses")
        )
        member = visited.members.get(name)
        if not isinstance(member, griffe.Alias):
            return visited
        module, _, name = _absolute(member.target_path, module, file).rpartition(".")
    return None


def _absolute(target: str, module: str, file: Path) -> str:
    """A target of a relative import as an absolute path; griffe gives absolute ones where it knows the package."""
    if not target.startswith("."):
        return target
    base = module if file.name == "__init__.py" else module.rpartition(".")[0]
    return f"{base}.{target.lstrip('.')}"


def _file(folder: Path, module: str) -> Path | None:
    place = folder.joinpath(*module.split("."))
    return next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None)


def _concerns(change: griffe.Breakage, name: str, use: Use) -> bool:
    """Whether a change is of a used name, and of a member or argument that the script writes or leaves alone."""
    path = change.obj.path.split(".")
    if name not in path or change.kind is griffe.BreakageKind.PARAMETER_MOVED:  # keywords do not mind
        return False
    argument = getattr(change.old_value, "name", None) or getattr(change.new_value, "name", None)
    member = argument or path[-1]
    if member == name:
        return True
    if change.kind in DEFAULTS:
        return path[-1] in ("__init__", name) and member not in use.words
    return member in use.words and (argument is None or path[-1] in ("__init__", *use.words))


def _line(package: str, change: griffe.Breakage) -> str:
    path = f"{package}.{'.'.join(change.obj.path.split('.')[change.obj.module.path.count('.') + 1 :])}"
    argument = getattr(change.old_value, "name", None) or getattr(change.new_value, "name", None)
    place = f"{path}({argument})" if argument and argument != path.rpartition(".")[2] else path
    said = change.kind.value[0].lower() + change.kind.value[1:]
    if change.kind in DEFAULTS:
        old, new = (getattr(value, "default", value) for value in (change.old_value, change.new_value))
        said += f", {old} -> {new}"
    return f"{place}: {said}"
