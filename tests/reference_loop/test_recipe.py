"""A recipe that exists is a valid one; what is refused is refused with the key, the value and the way out."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from math import inf
from pathlib import Path

import pytest

from reference_loop.recipe import (
    ARGUMENTS,
    Accept,
    Clip,
    Ema,
    Optimizer,
    Precision,
    Recipe,
    RecipeError,
    ScalerOptions,
    Schedule,
    from_dict,
    load,
    to_dict,
)

EVERYTHING = """
seed = 3
epochs = 2
batch_size = 4
accumulation = 4
shuffle = true
drop_last = true
workers = 1
[optimizer]
name = "adamw"
lr = 1
weight_decay = 0.1
betas = [0.9, 0.95]
eps = 1e-6
amsgrad = true
[schedule]
name = "linear"
warmup = 2
[clip]
max_norm = inf
[precision]
dtype = "float16"
[scaler]
init_scale = 1024
growth_interval = 3
[ema]
decay = 0.99
[log]
[evaluate]
every = 2
[checkpoint]
every = 3
[parallel]
ranks = 2
[semantics]
"accumulation.normalise" = "unit_mean"
clip.moment = "off"
[[accept]]
cause = "optimizer.kernel"
reason = "fused kernel wanted"
until = 2027-06-30
"""


@pytest.fixture
def recipe_file(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "recipe.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def refusal(*sets: str, path: Path | None = None) -> str:
    with pytest.raises(RecipeError) as caught:
        load(path, list(sets))
    return str(caught.value)


# What a recipe holds


def test_an_empty_recipe_is_one_epoch_of_plain_sgd():
    recipe = load(None, [])
    assert recipe == Recipe()
    assert (recipe.seed, recipe.epochs, recipe.updates, recipe.batch_size, recipe.accumulation) == (0, 1, None, 2, 1)
    assert (recipe.shuffle, recipe.drop_last, recipe.workers) == (False, False, 0)
    assert (recipe.optimizer.name, recipe.optimizer.lr) == ("sgd", 0.1)
    assert (recipe.precision.dtype, recipe.parallel.ranks) == ("float32", 1)
    absent = ("schedule", "clip", "scaler", "ema", "log", "evaluate", "checkpoint")
    assert [getattr(recipe, table) for table in absent] == [None] * len(absent)
    assert (recipe.semantics, recipe.accept) == ({}, ())


def test_every_table_of_a_file_is_read(recipe_file):
    recipe = load(recipe_file(EVERYTHING))
    assert recipe.optimizer.lr == 1.0
    assert isinstance(recipe.optimizer.lr, float)
    assert recipe.optimizer.betas == (0.9, 0.95)
    assert recipe.schedule == Schedule(name="linear", warmup=2)
    assert recipe.clip == Clip(max_norm=inf)
    assert recipe.precision == Precision(dtype="float16")
    assert recipe.scaler == ScalerOptions(init_scale=1024.0, growth_interval=3)
    assert recipe.ema == Ema(decay=0.99)
    assert (recipe.log.every, recipe.evaluate.every, recipe.checkpoint.every, recipe.parallel.ranks) == (1, 2, 3, 2)
    assert recipe.semantics == {"accumulation.normalise": "unit_mean", "clip.moment": "off"}
    assert recipe.accept == (Accept(cause="optimizer.kernel", reason="fused kernel wanted", until="2027-06-30"),)


def test_a_recipe_round_trips_through_strict_json(recipe_file):
    for recipe in (Recipe(), load(recipe_file(EVERYTHING)), load(None, ["updates=4", "clip.max_value=0.5"])):
        text = json.dumps(to_dict(recipe), allow_nan=False)
        assert from_dict(json.loads(text)) == recipe


def test_arguments_are_the_rate_and_what_was_stated():
    assert Optimizer().arguments() == {"lr": 0.1}
    stated = Optimizer(name="adamw", lr=1, weight_decay=0, betas=(0.9, 0.99))
    assert stated.arguments() == {"lr": 1.0, "weight_decay": 0.0, "betas": (0.9, 0.99)}


def test_arguments_of_each_name_are_those_of_torch_optim():
    import inspect

    import torch

    for name, cls in (("sgd", torch.optim.SGD), ("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)):
        implementation = {"params", "foreach", "capturable", "differentiable", "fused", "decoupled_weight_decay"}
        assert set(ARGUMENTS[name]) == set(inspect.signature(cls).parameters) - implementation


def test_a_recipe_is_frozen_and_checked_however_it_is_made():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Recipe().seed = 1
    with pytest.raises(RecipeError, match="batch_size must be a whole number, 1 or more, found 0"):
        Recipe(batch_size=0)
    with pytest.raises(RecipeError, match=r"optimizer\.lr"):
        dataclasses.replace(Optimizer(), lr=-1.0)


def test_reading_recipes_needs_no_torch(root):
    code = "import sys, reference_loop.recipe as r; r.load(None, ['seed=1']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


# --set


def test_set_takes_toml_values_and_bare_words():
    sets = [
        "optimizer.name=adamw",
        "optimizer.lr=1e-3",
        "optimizer.betas=[0.8, 0.9]",
        "shuffle=true",
        "clip.max_norm=inf",
    ]
    recipe = load(None, sets)
    assert recipe.optimizer == Optimizer(name="adamw", lr=1e-3, betas=(0.8, 0.9))
    assert (recipe.shuffle, recipe.clip) == (True, Clip(max_norm=inf))
    assert load(None, ['optimizer.name = "adam"']).optimizer.name == "adam"


def test_set_goes_over_the_file_in_its_order(recipe_file):
    path = recipe_file("seed = 1\n[optimizer]\nlr = 0.5\nmomentum = 0.9\n")
    recipe = load(path, ["seed=2", "seed=3", "optimizer.lr=0.25"])
    assert (recipe.seed, recipe.optimizer.lr, recipe.optimizer.momentum) == (3, 0.25, 0.9)


@pytest.mark.parametrize(
    "key",
    ['semantics."accumulation.normalise"', "semantics.accumulation.normalise", "semantics.'accumulation.normalise'"],
)
def test_a_knob_is_set_with_and_without_quotes(recipe_file, key):
    path = recipe_file('[semantics]\n"accumulation.normalise" = "sum"\n"clip.moment" = "off"\n')
    recipe = load(path, [f"{key}=unit_mean"])
    assert recipe.semantics == {"accumulation.normalise": "unit_mean", "clip.moment": "off"}


def test_a_knob_may_be_set_to_a_list_of_names_or_to_nothing():
    assert load(None, ["semantics.resume.missing=order,rng"]).semantics == {"resume.missing": "order,rng"}
    assert load(None, ["semantics.resume.missing="]).semantics == {"resume.missing": ""}


def test_of_epochs_and_updates_the_last_stated_stands(recipe_file):
    path = recipe_file("epochs = 2\n")
    assert (load(path, ["updates=4"]).epochs, load(path, ["updates=4"]).updates) == (None, 4)
    assert load(path, ["updates=4", "epochs=3"]).epochs == 3
    assert load(recipe_file("[clip]\nmax_norm = 1.0\n"), ["clip.max_value=0.5"]).clip == Clip(max_value=0.5)


def test_an_accepted_cause_can_be_set():
    recipe = load(None, ['accept=[{cause = "optimizer.kernel", reason = "wanted", until = 2027-01-01}]'])
    assert recipe.accept[0].until == "2027-01-01"


# What is refused


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("optimizer.momentun=0.9", "unknown key optimizer.momentun; did you mean optimizer.momentum? ([optimizer] has"),
        ("optimzer.lr=1", "unknown key optimzer; did you mean optimizer?"),
        ("lr=1", "unknown key lr; did you mean optimizer.lr?"),
        ("bach_size=3", "unknown key bach_size; did you mean batch_size?"),
        ("grad_accumulation=3", "unknown key grad_accumulation; did you mean accumulation?"),
        ("zzz=1", "unknown key zzz (a recipe has seed, epochs,"),
        ("optimizer.name=adamww", "must be one of sgd, adam, adamw, found 'adamww'; did you mean adamw?"),
        ("precision.dtype=fp16", "precision.dtype must be one of float32, bfloat16, float16, found 'fp16'"),
        ("optimizer.lr=-1", "--set optimizer.lr=-1: optimizer.lr must be a finite number, 0 or more, found -1"),
        ("optimizer.lr=nan", "found nan"),
        ("optimizer.lr=inf", "found inf"),
        ("optimizer.lr=true", "found true"),
        ("optimizer.lr=1" + "0" * 400, "found 1000"),
        ("optimizer.lr='0.1'", "found '0.1'"),
        ("batch_size=true", "batch_size must be a whole number, 1 or more, found true"),
        ("batch_size=2.0", "found 2.0"),
        ("accumulation=0", "accumulation must be a whole number, 1 or more, found 0"),
        ("seed=4294967296", "seed must be a whole number from 0 to 4294967295"),
        ("shuffle=True", "shuffle must be true or false, found 'True'; did you mean true?"),
        ("shuffle=1", "shuffle must be true or false, found 1"),
        ("schedule.warmup=2", "schedule.name is missing: [schedule] needs name, and name is one of constant, linear"),
        ("clip.max_norm=0", "clip.max_norm must be a number greater than 0 (inf: no clipping), found 0"),
        ("clip.max_norm=nan", "found nan"),
        ("clip={}", "[clip] needs exactly one of max_norm and max_value, found neither"),
        ("scaler.growth_factor=1.0", "scaler.growth_factor must be a finite number greater than 1"),
        ("scaler.backoff_factor=1.0", "scaler.backoff_factor must be a number greater than 0 and less than 1"),
        ("scaler.growth_interval=0", "scaler.growth_interval must be a whole number, 1 or more"),
        ("scaler.init_scale=1e39", "scaler.init_scale must be a number greater than 0 that float32 holds"),
        ("ema.decay=1.5", "ema.decay must be a number from 0 to 1"),
        ("optimizer=adamw", "optimizer must be a table, found 'adamw': set its keys, such as optimizer.name"),
        ("optimizer.nesterov=true", "optimizer.nesterov needs a momentum greater than 0 and no dampening"),
        ("optimizer.betas=[0.9, 0.999]", "optimizer.betas is not an argument of sgd, which takes lr, weight_decay,"),
        ("semantics=3", "semantics must be a table of knobs, found 3"),
        ("semantics.accumulation.tail=3", "semantics: accumulation.tail must be a text, found 3"),
        ("accept=3", "accept must be a list of tables, written [[accept]], found 3"),
        (
            "accept=[{cause='a', reason='b', until='soon'}]",
            "accept.until must be a date such as 2027-06-30, found 'soon'",
        ),
        ("accept=[{cause='a', until=2027-01-01}]", "accept.reason is missing: [accept] needs cause, reason, until"),
        (
            "accept=[{cause='', reason='b', until=2027-01-01}]",
            "accept.cause must be a text that is not empty, found ''",
        ),
        ("nothing", "--set takes KEY=VALUE, such as optimizer.lr=0.1, found 'nothing'"),
        ("=3", "--set takes KEY=VALUE"),
        ("a b=3", "--set takes KEY=VALUE"),
    ],
)
def test_a_setting_is_refused_with_what_to_do(setting, says):
    assert says in refusal(setting)


@pytest.mark.parametrize("betas", ["[0.9]", "[0.9, 1.0]", "[0.9, 0.9, 0.9]", "0.9", "[0.9, true]"])
def test_betas_are_two_numbers_below_one(betas):
    message = refusal("optimizer.name=adam", f"optimizer.betas={betas}")
    assert "optimizer.betas must be two numbers, each at least 0 and less than 1, found" in message


def test_an_argument_of_another_optimizer_is_refused_with_its_owner():
    message = refusal("optimizer.name=adamw", "optimizer.momentum=0.9")
    assert "optimizer.momentum is not an argument of adamw, which takes lr, weight_decay, betas, eps" in message
    assert message.endswith("or set optimizer.name to one that takes it (sgd)")


def test_a_key_below_a_plain_value_is_refused(recipe_file):
    assert "seed is not a table, so seed.x cannot be set" in refusal("seed.x=1", path=recipe_file("seed = 1\n"))


def test_a_length_given_twice_in_one_file_is_refused(recipe_file):
    path = recipe_file("epochs = 2\nupdates = 4\n")
    assert refusal(path=path) == f"{path}: the length is given twice, epochs = 2 and updates = 4: remove one"
    both = refusal(path=recipe_file("[clip]\nmax_norm = 1.0\nmax_value = 2.0\n"))
    assert "found max_norm = 1.0 and max_value = 2.0" in both


def test_a_wrong_key_in_a_file_names_the_file(recipe_file):
    path = recipe_file("[optimizer]\nlerning_rate = 1\n")
    assert refusal("seed=1", path=path).startswith(f"{path}: unknown key optimizer.lerning_rate (")


@pytest.mark.parametrize(
    ("text", "line"), [("seed = 1\nepochs 2\n", 2), ("seed = 1\n\n[optimizer", 3), ("seed = 1\nseed = 2\n", 2)]
)
def test_a_syntax_error_names_file_and_line(recipe_file, text, line):
    path = recipe_file(text)
    assert refusal(path=path).startswith(f"{path}:{line}: not valid TOML: ")


def test_a_file_that_cannot_be_read_is_one_clear_message(tmp_path):
    missing = tmp_path / "missing.toml"
    assert refusal(path=missing) == f"the recipe file {missing} does not exist: give the path of a TOML file"
    assert "cannot be read: Is a directory" in refusal(path=tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"# \xe9\n")
    assert "is not UTF-8 text (byte 2)" in refusal(path=tmp_path / "latin.toml")


def test_the_error_carries_its_key():
    with pytest.raises(RecipeError) as caught:
        from_dict({"optimizer": {"lr": "fast"}})
    assert caught.value.key == "optimizer.lr"
