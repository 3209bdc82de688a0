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
    layer = environment.prepare([f"transformers{version}"])
    path = os.pathsep.join(filter(None, [str(layer.layer or ""), os.environ.get("PYTHONPATH")]))
    tests = [str(HERE / "test_transformers.py"), str(root / "tests" / "fixtures"), "-k", "transformers or llama"]
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
