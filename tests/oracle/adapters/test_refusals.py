"""What an adapter cannot pass on is refused, with the field and what to do; no framework is needed to know."""

from __future__ import annotations

import pytest

from oracle.adapters import (
    accelerate,
    deepspeed,
    fabric,
    fastai,
    ignite,
    keras,
    lightning,
    mmengine,
    skorch,
    transformers,
    trl,
)
from oracle.errors import TrainerError
from oracle.job import Job
from oracle.tasks import load_task
from reference_loop.recipe import from_dict

REFUSED = [
    (accelerate, {"ema": {"decay": 0.9}}, "[ema]"),
    (fabric, {"ema": {"decay": 0.9}}, "[ema]"),
    (ignite, {"ema": {"decay": 0.9}}, "[ema]"),
    (ignite, {"parallel": {"ranks": 2}}, "parallel.ranks = 2"),
    (lightning, {"ema": {"decay": 0.9}}, "[ema]"),
    (mmengine, {"ema": {"decay": 0.9}}, "[ema]"),
    (mmengine, {"parallel": {"ranks": 2}}, "parallel.ranks = 2"),
    (mmengine, {"scaler": {"init_scale": 8.0}}, "[scaler]"),
    (skorch, {"ema": {"decay": 0.9}}, "[ema]"),
    (skorch, {"parallel": {"ranks": 2}}, "parallel.ranks = 2"),
    (skorch, {"clip": {"max_value": 1.0}}, "clip.max_value"),
    (deepspeed, {"ema": {"decay": 0.9}}, "[ema]"),
    (deepspeed, {"clip": {"max_value": 1.0}}, "clip.max_value"),
    (deepspeed, {"precision": {"dtype": "float16"}, "scaler": {"init_scale": 8.0}}, "[scaler]"),
    (fastai, {"ema": {"decay": 0.9}}, "[ema]"),
    (fastai, {"parallel": {"ranks": 2}}, "parallel.ranks = 2"),
    (fastai, {"clip": {"max_value": 1.0}}, "clip.max_value"),
    (fastai, {"optimizer": {"name": "sgd", "nesterov": True, "momentum": 0.9}}, "optimizer.nesterov"),
    (keras, {"ema": {"decay": 0.9}}, "[ema]"),
    (keras, {"parallel": {"ranks": 2}}, "parallel.ranks = 2"),
    (keras, {"precision": {"dtype": "bfloat16"}}, "precision.dtype"),
    (keras, {"scaler": {"init_scale": 8.0}}, "[scaler]"),
    (keras, {"optimizer": {"name": "adam", "maximize": True}}, "optimizer.maximize"),
    (trl, {"ema": {"decay": 0.9}}, "[ema]"),
    (trl, {"parallel": {"ranks": 2}}, "parallel.ranks = 2"),
    (transformers, {"ema": {"decay": 0.9}}, "[ema]"),
    (transformers, {"scaler": {"init_scale": 8.0}}, "[scaler]"),
    (transformers, {"clip": {"max_value": 1.0}}, "clip.max_value"),
]


@pytest.mark.parametrize(("adapter", "values", "named"), REFUSED)
def test_what_cannot_be_mapped_is_refused_by_its_name(adapter, values, named):
    assert named in adapter.Adapter().refuse(from_dict(values))


@pytest.mark.parametrize(
    "adapter", [accelerate, deepspeed, fabric, fastai, ignite, lightning, mmengine, skorch, transformers, trl]
)
def test_what_can_be_mapped_is_not_refused(adapter):
    full = {
        "optimizer": {"name": "adamw", "betas": [0.9, 0.95]},
        "schedule": {"name": "cosine", "warmup": 1},
        "clip": {"max_norm": 1.0},
        "precision": {"dtype": "bfloat16"},
        "log": {},
        "evaluate": {},
        "checkpoint": {"every": 1},
    }
    assert adapter.Adapter().refuse(from_dict(full)) is None


def test_training_a_refused_recipe_raises_before_anything_is_built(tmp_path):
    job = Job(load_task("regression"), from_dict({"ema": {"decay": 0.9}}), workdir=tmp_path)
    with pytest.raises(TrainerError, match=r"trainer 'accelerate': .*remove \[ema\]"):
        accelerate.Adapter().train(job)


def test_each_recipe_field_has_a_row_in_each_adapter_s_table(root):
    from dataclasses import fields

    from reference_loop.recipe import Recipe

    files = (root / "oracle" / "adapters").glob("*.py")
    for name in (file.stem for file in files if "class Adapter" in file.read_text()):
        text = (root / "docs" / "trainers" / f"{name}.md").read_text()
        absent = [
            field.name
            for field in fields(Recipe)
            if field.name not in ("semantics", "accept", "precision", "parallel")
            and f"`{field.name}" not in text
            and f"`[{field.name}]`" not in text
        ]
        assert not absent
        assert "`precision.dtype`" in text and "`parallel.ranks`" in text
