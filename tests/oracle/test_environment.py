"""A layer holds only what differs, is there as a whole or not at all, and never replaces torch unasked."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from oracle import environment, processes
from oracle.environment import prepare
from oracle.errors import EnvironmentRefused
from oracle.tasks import list_tasks
from reference_loop.recipe import from_dict, to_dict
from reference_loop.semantics import Semantics

# All that torch imports; the rest of a worker must come from the standard library.
TORCH = (
    *("torch", "torchgen", "functorch", "typing_extensions.py", "sympy", "mpmath", "networkx", "jinja2"),
    *("markupsafe", "filelock", "fsspec"),
)


def wheel(folder, name, version, requires=()):
    """Write a wheel with one module that knows its version."""
    about = f"{name}-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {requirement}" for requirement in requires]
    files = {
        f"{name}.py": f"version = {version!r}\n",
        f"{about}/METADATA": "\n".join(lines) + "\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(text)}\n"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
        archive.writestr(f"{about}/RECORD", record + f"{about}/RECORD,,\n")


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A package index of a few small wheels, no network, and a cache of the test's own."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    wheel(folder, "framework", "1.0", ["plugin>=2", "click", "torch>=2"])
    wheel(folder, "framework", "0.9", ["torch<2"])
    wheel(folder, "plugin", "1.0")
    wheel(folder, "plugin", "2.0")
    wheel(folder, "torch", "1.9")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("ORACLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    return folder


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """The interpreter of an environment that has torch and nothing else."""
    import torch

    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    here = Path(torch.__file__).parent.parent
    for entry in (*TORCH, f"torch-{torch.__version__}.dist-info"):
        (site / entry).symlink_to(here / entry)
    return str(folder / "venv" / "bin" / "python")


def test_without_requirements_the_environment_is_used_as_it_is(index):
    found = prepare()
    assert (found.python, found.layer, found.seconds) == (sys.executable, None, 0.0)


def test_a_layer_holds_only_what_differs_and_is_reused(index):
    said = []
    built = prepare(["framework==1.0"], say=said.append)
    assert built.holds == {"framework": "1.0", "plugin": "2.0"}
    assert said == ["resolving framework==1.0", "building a layer: framework 1.0, plugin 2.0"]
    names = {path.name for path in built.layer.iterdir() if path.suffix == ".py"}
    assert names == {"framework.py", "plugin.py"}
    manifest = json.loads((built.layer / "layer.json").read_text())
    assert manifest["rests_on"].keys() >= {"click", "torch"} and "pytest" not in manifest["rests_on"]
    started = time.monotonic()
    again = prepare(["framework == 1.0"])
    assert (again.layer, again.seconds) == (built.layer, 0.0)
    assert time.monotonic() - started < 1


def test_a_layer_comes_before_the_environment_s_packages(index):
    layer = prepare(["plugin==1.0"]).layer
    code = "import plugin, torch; print(plugin.version, plugin.__file__)"
    done = subprocess.run([sys.executable, "-c", code], env=processes.pinned(1, layer), capture_output=True, text=True)
    assert done.stdout.split() == ["1.0", str(layer / "plugin.py")]


def test_a_layer_is_rebuilt_when_what_it_rests_on_changes(index):
    layer = prepare(["framework==1.0"]).layer
    manifest = json.loads((layer / "layer.json").read_text())
    manifest["rests_on"]["click"] = "0.0"
    (layer / "layer.json").write_text(json.dumps(manifest))
    base = environment.inspect(sys.executable)
    assert environment._existing(layer.name.partition("-")[0], base) is None


def test_nothing_to_install_needs_no_layer(index):
    said = []
    assert prepare(["click"], say=said.append).layer is None
    assert said == ["resolving click", "building a layer: nothing differs"]
    assert prepare(["click"], say=said.append).seconds == 0.0
    assert len(said) == 2


def test_two_builders_at_once_agree(index):
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: prepare(["plugin==1.0"]), range(2))
    assert first.layer == second.layer and (first.layer / "plugin.py").is_file()
    assert [path.name for path in environment.layers().iterdir()] == [first.layer.name]


def test_an_interrupted_build_leaves_nothing(index, monkeypatch):
    pip = environment._pip

    def interrupted(base, arguments, asked):
        pip(base, arguments, asked)
        if "--target" in arguments:
            raise KeyboardInterrupt

    monkeypatch.setattr(environment, "_pip", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare(["plugin==1.0"])
    assert list(environment.layers().iterdir()) == []


def test_what_a_killed_builder_left_is_removed_by_the_next(index):
    abandoned = environment.layers() / ".building-abandoned"
    abandoned.mkdir(parents=True)
    (abandoned / "lock").touch()
    prepare(["plugin==1.0"])
    assert not abandoned.exists()


def test_another_torch_is_refused_unless_allowed(index):
    with pytest.raises(EnvironmentRefused) as refused:
        prepare(["framework==0.9"])
    assert "framework 0.9 depends on torch<2, and torch 2" in str(refused.value)
    assert "pass --allow-torch" in str(refused.value)
    with pytest.raises(EnvironmentRefused, match=r"has torch 1\.9; the oracle needs 2\.6 or later"):
        prepare(["framework==0.9"], allow_torch=True)


def test_no_such_version_says_what_pip_says(index):
    with pytest.raises(EnvironmentRefused) as refused:
        prepare(["plugin==9"])
    text = (
        "--with plugin==9: pip cannot build the layer: check its name and version, and that an index has it. "
        "pip says: No matching distribution found for plugin==9"
    )
    assert str(refused.value) == text
    assert list(environment.layers().iterdir()) == []


def test_no_network_is_said(index, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    for name, value in {"INDEX_URL": "http://127.0.0.1:9/simple", "RETRIES": "0", "CONFIG_FILE": os.devnull}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    with pytest.raises(EnvironmentRefused, match="the package index cannot be reached, and only a layer built before"):
        prepare(["nosuchframework==1.0"])


@pytest.mark.parametrize(
    ("requirement", "words"),
    [("./checkout", "a folder or URL is not"), ("plugin @ https://example.org/plugin.whl", "a URL is not cached")],
)
def test_what_cannot_be_cached_is_refused(index, requirement, words):
    with pytest.raises(EnvironmentRefused, match=words):
        prepare([requirement])


def test_a_cache_that_cannot_be_written_is_one_message(index, monkeypatch):
    monkeypatch.setenv("ORACLE_CACHE", "/dev/null")
    with pytest.raises(EnvironmentRefused, match="the layer cannot be written: /dev/null/layers: Not a directory"):
        prepare(["plugin==1.0"])


def test_an_interpreter_without_torch_is_refused(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path)], check=True)
    with pytest.raises(EnvironmentRefused, match="has no torch: pip install torch there"):
        prepare(python=str(tmp_path / "bin" / "python"))


@pytest.mark.parametrize("python", ["/nowhere/python", "/bin/echo"])
def test_what_is_no_interpreter_is_refused(python):
    with pytest.raises(EnvironmentRefused, match=f"--python {python}: "):
        prepare(python=python)


def test_a_worker_needs_nothing_but_torch(bare, tmp_path, root):
    found = prepare(python=bare)
    recipe = from_dict({"updates": 2, "accumulation": 2})
    spec = {
        "task": str(list_tasks()["regression"]),
        "trainer": f"{root}/fixtures/trainers/healthy.py:Healthy",
        "recipe": to_dict(recipe),
        "semantics": Semantics.of(recipe).flat(),
        "digest": None,
        "folder": tmp_path / "run",
        "workdir": tmp_path / "work",
    }
    ending = processes.start(spec, python=found.python).wait(60)
    assert ending.status == "completed", ending.last_words
    assert "numpy" not in ending.outcome["versions"]
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["digest"] == found.digest == "blake2b-128"


def test_a_layer_over_an_environment_without_pip(bare, index):
    found = prepare(["plugin==2.0"], python=bare)
    assert found.holds == {"plugin": "2.0"}
    done = subprocess.run([bare, "-c", "import plugin"], env=processes.pinned(1, found.layer))
    assert done.returncode == 0


@pytest.mark.slow
@pytest.mark.trainers
@pytest.mark.parametrize("version", ["4.46.3", "4.54.0"])
def test_released_transformers_train_in_a_layer(version, tmp_path, monkeypatch):
    monkeypatch.setenv("ORACLE_CACHE", str(tmp_path / "cache"))
    found = prepare([f"transformers=={version}"])
    assert found.holds["transformers"] == version and "torch" not in found.holds
    recipe = from_dict({"accumulation": 2})
    spec = {
        "task": "regression",
        "trainer": "transformers",
        "recipe": to_dict(recipe),
        "semantics": Semantics.of(recipe).flat(),
        "digest": None,
        "folder": tmp_path / "run",
        "workdir": tmp_path / "work",
    }
    ending = processes.start(spec, layer=found.layer).wait(240)
    assert ending.status == "completed", ending.last_words
    assert ending.outcome["versions"]["transformers"] == version


def test_building_a_layer_leaves_setuptools_usable(index, root):
    code = "from oracle.environment import prepare; prepare(['plugin==1.0']); import setuptools"
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
