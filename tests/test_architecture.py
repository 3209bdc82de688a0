"""Import direction and packaging, each check shown able to fail."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

OURS = ("diffs", "oracle", "reference_loop")
# What runs in the candidate's own environment, where nothing of ours is installed.
WORKER_SIDE = (
    "diffs/digest.py",
    "oracle/adapters",
    "oracle/evaluate/stopwatch.py",
    "oracle/job.py",
    "oracle/profile/signatures.py",
    "oracle/recorder",
    "oracle/resume/interruption.py",
    "oracle/resume/saves.py",
    "oracle/worker.py",
    "reference_loop",
)
ALLOWED = frozenset(sys.stdlib_module_names) | {"torch"}


def imported(tree: ast.AST, functions: bool, guarded: bool = True) -> Iterator[tuple[int, str]]:
    """Yield (line, module) of each absolute import.

    functions: also those in function bodies. guarded: also those under `try: ... except ImportError`.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.lineno, node.module or ""
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif not _skipped(node, functions, guarded):
            yield from imported(node, functions, guarded)


def _skipped(node: ast.AST, functions: bool, guarded: bool) -> bool:
    """Whether what stands inside a node is not to be looked at."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
            return not functions
        case ast.If():
            return ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        case ast.Try():
            return not guarded and any(_catches_import_error(handler) for handler in node.handlers)
    return False


def _catches_import_error(handler: ast.ExceptHandler) -> bool:
    return handler.type is not None and any(
        name in ast.unparse(handler.type) for name in ("ImportError", "ModuleNotFoundError")
    )


def foreign_imports(source: str, functions: bool) -> list[str]:
    """The imports that the candidate's environment may lack, as "line: module". Guarded ones may be missing."""
    found = imported(ast.parse(source), functions, guarded=False)
    return sorted(
        {
            f"{line}: {top}"
            for line, module in found
            if (top := module.partition(".")[0]) not in ALLOWED and top not in OURS
        }
    )


def own_files(root: Path, source: str) -> Iterator[Path]:
    """The files of ours that a source imports anywhere, package __init__ files included."""
    for _, module in imported(ast.parse(source), functions=True):
        if module.partition(".")[0] in OURS:
            path = root.joinpath(*module.split("."))
            yield from (p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file())


def worker_side(root: Path) -> list[Path]:
    """The files that the worker reaches: those named above and all that they import, in any function."""
    waiting = [
        file
        for name in WORKER_SIDE
        for file in ([root / name] if name.endswith(".py") else sorted((root / name).rglob("*.py")))
        if file.is_file()
    ]
    seen: dict[Path, None] = {}
    while waiting:
        file = waiting.pop()
        if file not in seen:
            seen[file] = None
            waiting.extend(own_files(root, file.read_text()))
    return sorted(seen)


def test_the_worker_side_imports_only_the_standard_library_and_torch(root: Path) -> None:
    wrong = {}
    for file in worker_side(root):
        adapter = file.parent == root / "oracle/adapters"  # an adapter imports its framework inside its functions
        if found := foreign_imports(file.read_text(), functions=not adapter):
            wrong[str(file.relative_to(root))] = found
    assert not wrong


@pytest.mark.parametrize(
    ("source", "functions", "expected"),
    [
        ("import torch, json", True, []),
        ("import numpy as np", False, ["1: numpy"]),
        ("from click.testing import CliRunner", False, ["1: click"]),
        ("def f():\n    import transformers", False, []),
        ("def f():\n    import transformers", True, ["2: transformers"]),
        ("class A:\n    from rich import print", False, ["2: rich"]),
        ("try:\n    import xxhash\nexcept ImportError:\n    xxhash = None", True, []),
        ("try:\n    import xxhash\nexcept ValueError:\n    pass", True, ["2: xxhash"]),
    ],
)
def test_a_foreign_import_is_found(source: str, functions: bool, expected: list[str]) -> None:
    assert foreign_imports(source, functions) == expected


def test_a_file_reached_only_through_another_is_on_the_worker_side(tmp_path: Path) -> None:
    for name, source in {
        "oracle/worker.py": "def f():\n    from oracle import other",
        "oracle/other.py": "import oracle.third",
        "oracle/third.py": "",
        "oracle/alone.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(source)
    assert [file.name for file in worker_side(tmp_path)] == ["other.py", "third.py", "worker.py"]


def test_importing_our_packages_imports_nothing_else(root: Path) -> None:
    for package in OURS:
        tree = ast.parse((root / package / "__init__.py").read_text())
        assert [module for _, module in imported(tree, functions=False) if module != "__future__"] == []


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as main; main()", "--no-cache"],
        cwd=folder,
        capture_output=True,
        text=True,
        env={"PATH": "", "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
    )


@pytest.mark.parametrize(
    ("file", "source", "passes"),
    [
        ("oracle/a.py", "import diffs, reference_loop", True),
        ("diffs/a.py", "import oracle", False),
        ("diffs/a.py", "import reference_loop", False),
        ("reference_loop/a.py", "import diffs", False),
        ("reference_loop/a.py", "def f():\n    import oracle", False),
    ],
)
def test_an_import_against_the_direction_is_found(root: Path, tmp_path: Path, file: str, source: str, passes: bool):
    for package in OURS:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("")
    (tmp_path / file).write_text(source)
    (tmp_path / "pyproject.toml").write_text((root / "pyproject.toml").read_text())
    found = lint_imports(tmp_path)
    assert (found.returncode == 0) is passes, found.stdout + found.stderr


# Reached otherwise than by an import: by name, by path, by a reader, or as a library of its own.
ENTRIES = (
    "diffs/*.py",
    "oracle/__main__.py",
    "oracle/adapters/*.py",
    "oracle/callbacks/*.py",
    "oracle/evaluate/__main__.py",
    "oracle/evaluate/checks/*.py",
    "oracle/evaluate/stopwatch.py",
    "oracle/forkserver.py",
    "oracle/matrix/__main__.py",
    "oracle/pytest_plugin.py",
    "oracle/profile/__main__.py",
    "oracle/recorder/site/*.py",
    "oracle/report/*.py",
    "oracle/worker.py",
    "reference_loop/plain.py",
)


def dead_modules(root: Path) -> list[str]:
    """Our files that no other file of ours imports, in any function."""
    files = {file for package in OURS for file in (root / package).rglob("*.py")}
    reached = {found for file in files for found in own_files(root, file.read_text()) if found != file}
    entries = {file for pattern in ENTRIES for file in root.glob(pattern)}
    return sorted(str(file.relative_to(root)) for file in files - reached - entries if file.name != "__init__.py")


def test_no_module_is_dead(root: Path) -> None:
    assert dead_modules(root) == []


def test_a_dead_module_is_found(tmp_path: Path) -> None:
    (tmp_path / "oracle/adapters").mkdir(parents=True)
    for name, source in {
        "worker.py": "def f():\n    from oracle import used",
        "used.py": "",
        "unused.py": "import oracle.unused",
        "adapters/some.py": "",
    }.items():
        (tmp_path / "oracle" / name).write_text(source)
    assert dead_modules(tmp_path) == ["oracle/unused.py"]


def folders_to_package(root: Path) -> set[str]:
    """The packages that a wheel must list: all folders of ours that hold Python files, and the fixtures."""
    files = (file for package in OURS for file in (root / package).rglob("*.py"))
    return {"oracle.fixtures"} | {".".join(file.parent.relative_to(root).parts) for file in files}


def test_a_wheel_lists_every_folder_of_ours_and_no_other(root: Path) -> None:
    listed = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert folders_to_package(root) == set(listed)


def test_a_folder_that_no_wheel_carries_is_found(tmp_path: Path) -> None:
    (tmp_path / "oracle/new").mkdir(parents=True)
    (tmp_path / "oracle/new/noun.py").write_text("")
    assert folders_to_package(tmp_path) == {"oracle.fixtures", "oracle.new"}


@pytest.mark.slow
def test_a_wheel_carries_the_fixtures_inside_oracle(root: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"  # a build leaves files behind
    shutil.copytree(root, source, ignore=shutil.ignore_patterns(".*", "build", "*.egg-info"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(OURS)
    fixtures = {f"oracle/{file.relative_to(root)}" for file in (root / "fixtures").rglob("*") if file.is_file()}
    assert {name for name in fixtures if "__pycache__" not in name} == {n for n in names if "/fixtures/" in n}
