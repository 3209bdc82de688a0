"""A user's file as a part of another script: its text without what the script has already."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Inlined:
    """A file's text, the names that it defines, and the modules that it imports."""

    body: str
    names: frozenset[str]
    modules: frozenset[str]


def inlined(path: Path, replaced: Collection[str] = ()) -> Inlined:
    """A file's statements as they are written, but for its docstring, future imports and what only a script runs.

    replaced: modules whose imports are left out, because the script defines what they have.

    A file that imports its neighbours gets a line that makes them importable.
    """
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    lines: list[str | None] = list(text.splitlines())
    for node in tree.body:
        if _left_out(node, replaced, first=node is tree.body[0]):
            for index in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[index] = None
    kept = [node for node in tree.body if not _left_out(node, replaced, first=node is tree.body[0])]
    modules = frozenset(name for top in kept for node in ast.walk(top) for name in _imported(node))
    here = path.resolve().parent
    neighbours = [name for name in modules if (here / f"{name}.py").is_file() or (here / name).is_dir()]
    body = "\n".join(line for line in lines if line is not None).strip("\n")
    if neighbours:
        body = f"import sys\n\nsys.path.insert(0, {str(here)!r})  # {', '.join(sorted(neighbours))}\n\n{body}"
    return Inlined(body, frozenset(_defined(tree)), modules)


def imported(path: Path, name: str) -> Inlined:
    """Lines that take one name from a file by its path, where its text would collide with other text."""
    body = textwrap.dedent(f"""\
        import importlib.util

        _spec = importlib.util.spec_from_file_location("trainer_file", {str(path.resolve())!r})
        _module = importlib.util.module_from_spec(_spec)
        _spec.loader.exec_module(_module)
        {name} = _module.{name}""")
    return Inlined(body, frozenset({name}), frozenset({"importlib"}))


def attributes(path: Path) -> set[str]:
    """Every attribute that a file's text takes of anything."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def _left_out(node: ast.stmt, replaced: Collection[str], *, first: bool) -> bool:
    if first and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(node, ast.If) and "__name__" in ast.dump(node.test):
        return True
    return isinstance(node, ast.ImportFrom) and (node.module in replaced or node.module == "__future__")


def _imported(node: ast.AST) -> Iterator[str]:
    """The top-level modules that a statement imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        yield node.module.partition(".")[0]


def _defined(tree: ast.Module) -> Iterator[str]:
    """The names that a module binds at its top, but for those of imports."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif not isinstance(node, ast.Import | ast.ImportFrom):
            yield from (
                inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)
            )
