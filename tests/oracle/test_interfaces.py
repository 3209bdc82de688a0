"""What changed of the names that a script uses, and of no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from oracle.environment import Environment
from oracle.interfaces import changed, scripts_of, used

OLD = {
    "__init__.py": "from .train import Trainer, Gone, helper\n",
    "train.py": """
class Trainer:
    def __init__(self, model, rate=0.1, window=1, device=None, other=None):
        self.model = model

    def run(self, batches):
        return batches

    def unused(self):
        return 1

class Gone:
    pass

def helper(x):
    return x
""",
}
NEW = {
    "__init__.py": "from .train import Trainer\n",
    "train.py": """
class Trainer:
    def __init__(self, model, rate=0.2, window=2, other=None):
        self.model = model
""",
}
SCRIPT = """
from pack import Trainer, Gone
trainer = Trainer(model, window=4, device="cpu")
trainer.run(batches)
"""


def environment(folder: Path, version: str, files: dict[str, str]) -> Environment:
    (folder / "pack").mkdir(parents=True)
    for name, text in files.items():
        (folder / "pack" / name).write_text(text)
    return Environment(python="python", layer=folder, holds={"pack": version}, versions={"pack": version}, seconds=0)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path / "script.py"


def test_only_what_is_used_is_told(script: Path, tmp_path: Path) -> None:
    old, new = environment(tmp_path / "old", "1", OLD), environment(tmp_path / "new", "2", NEW)
    told = "\n".join(changed([script], old, new))
    assert "pack.Gone: removed" in told and "Trainer.run: public object was removed" in told
    assert "Trainer.__init__(rate): parameter default was changed, 0.1 -> 0.2" in told  # left alone by the script
    assert "(device)" in told and "window" not in told and "unused" not in told and "helper" not in told


def test_the_same_version_and_other_packages_are_silent(script: Path, tmp_path: Path) -> None:
    old, same = environment(tmp_path / "old", "1", OLD), environment(tmp_path / "same", "1", NEW)
    assert changed([script], old, same) == []
    (tmp_path / "other.py").write_text("import json\njson.dumps({})\n")
    new = environment(tmp_path / "new", "2", NEW)
    assert changed([tmp_path / "other.py", tmp_path / "missing.py"], old, new) == []


def test_names_behind_a_module_are_used_too(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import pack as p\np.Gone()\n")
    assert used([tmp_path / "script.py"]).imported == {("pack", "Gone")}
    old, new = environment(tmp_path / "old", "1", OLD), environment(tmp_path / "new", "2", NEW)
    assert changed([tmp_path / "script.py"], old, new) == ["pack.Gone: removed"]
    assert scripts_of(["python", str(tmp_path / "script.py"), "x.pt"]) == [tmp_path / "script.py"]
