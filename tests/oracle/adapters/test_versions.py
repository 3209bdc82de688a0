"""The adapters' own tests in a layer for each released version that the documentation names."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from oracle import environment

HERE = Path(__file__).parent


@pytest.mark.trainers
@pytest.mark.parametrize("version", ["==4.46.3", "==4.54.0", "==4.57.6", ""])
def test_the_transformers_adapter_keeps_its_promises(root, version):
    tests = [str(HERE / "test_transformers.py"), str(root / "tests" / "fixtures"), "-k", "transformers or llama"]
    keeps_its_promises(root, f"transformers{version}", tests)


@pytest.mark.trainers
def test_the_adapters_of_lightning_keep_their_promises(root):
    keeps_its_promises(root, "lightning==2.6.6", [str(HERE / "test_lightning.py"), str(HERE / "test_fabric.py")])


@pytest.mark.trainers
@pytest.mark.parametrize(
    ("name", "requirement"),
    [("ignite", "pytorch-ignite==0.5.5"), ("mmengine", "mmengine==0.10.7"), ("skorch", "skorch==1.4.0")],
)
def test_an_adapter_keeps_its_promises(root, name, requirement):
    keeps_its_promises(root, requirement, [str(HERE / f"test_{name}.py")])


@pytest.mark.trainers
@pytest.mark.parametrize(
    ("name", "requirements"),
    [
        ("fastai", ["fastai==2.8.12"]),
        ("keras", ["keras==3.15.1"]),
        ("deepspeed", ["deepspeed==0.19.8"]),
        ("swift", ["ms-swift==4.6.0"]),
        ("torchtune", ["torchtune==0.6.1", "torchao==0.11.0"]),
        ("trl", ["trl==1.16.0", "peft==0.21.2"]),
    ],
)
def test_the_adapters_of_own_optimizers_of_torchtune_and_of_trl_keep_their_promises(root, name, requirements):
    keeps_its_promises(root, requirements, [str(HERE / f"test_{name}.py")])


def keeps_its_promises(root: Path, requirement: str | list[str], tests: list[str]) -> None:
    """Run tests where a requirement is met; they pass, and are not skipped for want of it."""
    layer = environment.prepare([requirement] if isinstance(requirement, str) else requirement)
    path = os.pathsep.join(filter(None, [str(layer.layer or ""), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [layer.python, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-rs", *tests],
        cwd=root,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "not installed" not in done.stdout
