"""Results of every verdict, as the report's snapshots and the schema's tests use them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from oracle.result import (
    Accepted,
    At,
    CandidateOutcome,
    Cause,
    Change,
    Compared,
    Fact,
    FirstDivergence,
    GoldenCheck,
    Impact,
    Latent,
    MetricDrift,
    Moved,
    OneSided,
    ParameterDrift,
    Reproduction,
    Result,
    Resumption,
    SelfCheck,
    Site,
    Unexplained,
)

_MATCH = Result(
    command="check",
    verdict="match",
    policy="noise",
    passed=True,
    reference={"task": "ragged_tail", "recipe": {"accumulation": 4, "batch_size": 2}, "versions": {"torch": "2.13.0"}},
    candidate={"trainer": "transformers", "versions": {"transformers": "4.54.0"}},
    compared=Compared(updates=4, addresses=1840),
    self_check=SelfCheck(identical=True, addresses=1840),
    candidate_outcome=CandidateOutcome(status="completed", updates=4, exit_code=0),
    seconds={"total": 12.25, "import": 4.5},
    rerun="oracle check ragged_tail --trainer transformers --updates 4 --seed 0",
)

_TAIL = Cause(
    knob="accumulation.tail_divisor",
    reference="actual",
    candidate="configured",
    status="confirmed",
    effect="semantic",
    at=At(update=1, moment="consume"),
    identical_through_update=3,
    evidence=("candidate / reference is 1/4 in every element, exactly",),
    facts={"configured": 4, "actual": 1},
)

_DIVERGED = replace(
    _MATCH,
    verdict="diverged",
    passed=False,
    first_divergence=FirstDivergence(
        update=1,
        micro=-1,
        moment="consume",
        kind="gradient",
        name="0.weight",
        dtype="float32",
        index=(0, 2),
        reference=0.25,
        candidate=0.0625,
        ulp=16777216,
        max_abs=0.1875,
        differing=32,
        total=32,
    ),
    site=Site(
        update=1,
        micro=0,
        moment="backward",
        kind="objective",
        agreeing_inputs=("batch", "parameter", "rng", "loss"),
    ),
    causes=(_TAIL,),
    replays=3,
    rerun="oracle check ragged_tail --trainer transformers --updates 2 --seed 0",
)

_LOSS = FirstDivergence(
    update=2,
    micro=1,
    moment="forward",
    kind="loss",
    name="",
    dtype="float32",
    reference=0.10000000149011612,
    candidate=0.10000000894069672,
    ulp=1,
    max_abs=7.450580596923828e-09,
    differing=1,
    total=1,
)

_SAMPLES = {
    "match": _MATCH,
    "match_with_latent": replace(
        _MATCH,
        passed=False,
        latent=(
            Latent(update=0, micro=0, moment="backward", kind="objective", name="", addresses=8),
            Latent(update=0, micro=-1, moment="update", kind="rng", name="torch"),
            *(
                Latent(update=i, micro=0, moment="forward", kind="rng", name="torch", reference=1, candidate=2)
                for i in range(5)
            ),
        ),
        one_sided=(OneSided(side="candidate", moment="log", kind="metric", name="grad_norm", addresses=4),),
        notes=("micro_mean and unit_mean differ on this task beyond rounding: short micro-batches weigh more.",),
    ),
    "rounding": replace(
        _DIVERGED,
        verdict="rounding",
        passed=True,
        first_divergence=replace(
            _DIVERGED.first_divergence,
            update=0,
            reference=0.10000000149011612,
            candidate=0.10000000894069672,
            ulp=1,
            max_abs=7.450580596923828e-09,
            differing=5,
            error=6e-09,
            allowance=2.4e-08,
        ),
        site=Site(
            update=0, micro=0, moment="backward", kind="objective", agreeing_inputs=("input", "parameter", "rng")
        ),
        causes=(
            Cause(
                knob="accumulation.divide",
                reference="loss",
                candidate="gradient",
                status="confirmed",
                effect="style",
                at=At(update=0, moment="consume"),
                identical_through_update=3,
                evidence=("objective / reference is 4 in every micro-batch, exactly",),
            ),
        ),
    ),
    "diverged": _DIVERGED,
    "suggested": replace(
        _DIVERGED,
        site=replace(_DIVERGED.site, agreeing_inputs=("batch", "input", "parameter", "buffer", "rng")),
        causes=(
            replace(
                _TAIL,
                status="suggested",
                indistinguishable=("accumulation.normalise = twice", "accumulation.units = samples"),
                separated_by="--set accumulation=3",
                evidence=(),
                remedy="none: transformers 4.54.0 has no argument for it; 4.57.6 divides by what the window holds.",
            ),
        ),
    ),
    "several_causes": replace(
        _DIVERGED,
        policy="exact",
        causes=(
            Cause(
                knob="hyperparameter.max_norm",
                reference=None,
                candidate=1.0,
                status="confirmed",
                effect="semantic",
                at=At(update=0, moment="consume"),
                identical_through_update=0,
                evidence=("the candidate's optimizer takes gradients of norm 1",),
                remedy="max_grad_norm=0.0",
            ),
            Cause(
                knob="hyperparameter.weight_decay",
                reference=0.1,
                candidate=0.0,
                status="confirmed",
                effect="semantic",
                at=At(update=0, moment="update"),
                facts={"parameters": ["0.bias", "1.bias", "2.bias", "2.weight", "3.bias"]},
            ),
            Cause(
                knob="optimizer.kernel",
                reference="loop",
                candidate="fused",
                status="confirmed",
                effect="style",
                at=At(update=1, moment="update"),
                identical_through_update=3,
            ),
        ),
        accepted=(
            Accepted(cause="optimizer.kernel", reason="fused kernel wanted", until="2027-06-30"),
            Accepted(cause="data.order", reason="the old order", until="2025-01-31", expired=True),
        ),
    ),
    "bug_report": replace(
        _DIVERGED,
        causes=(replace(_TAIL, remedy="Trainer(divide_by='held'), verified by a rerun"),),
        reference={**_MATCH.reference, "threads": 1, "device": "cpu"},
        candidate={**_MATCH.candidate, "requirements": ["transformers==4.54.0"], "python": None},
        reproduction=Reproduction(
            cause="accumulation.tail_divisor",
            recipe={
                "seed": 0,
                "updates": 2,
                "accumulation": 4,
                "precision": {"dtype": "float32"},
                "optimizer": {"name": "adamw", "lr": 0.1, "betas": [0.9, 0.95]},
                "clip": {"max_norm": "inf"},
                "semantics": {"accumulation.normalise": "micro_mean"},
                "accept": [],
            },
            reruns=5,
            numbers=(
                _DIVERGED.first_divergence,
                replace(_DIVERGED.first_divergence, name="0.bias", index=None, reference=0.0, missing="candidate"),
            ),
            script='"""What ``` shows."""\nimport torch\n',
            output="update 1  plain loop  trainer\n",
        ),
    ),
    "no_script": replace(
        _DIVERGED,
        reproduction=Reproduction(
            cause="accumulation.tail_divisor",
            recipe={"updates": 2},
            reruns=0,
            reason="no plain loop is written for scaler.unit = micro",
        ),
    ),
    "impact": replace(
        _DIVERGED,
        impact=Impact(
            seeds=(0, 1, 2, 3, 4),
            updates=4,
            metrics=(
                MetricDrift(
                    name="loss",
                    reference=1.3770609411189436,
                    candidate=1.5804582975383787,
                    values=(1.3770609411189436, 1.1758693444093808, 1.4967364114014912, 0.875438446380629, 0.99477116),
                    mean=1.1839752608931027,
                    sd=0.2579537169362131,
                    inside=False,
                ),
                MetricDrift(
                    name="accuracy",
                    reference=1.0,
                    candidate=1.0,
                    values=(1.0, 1.0, 1.0, 1.0, 1.0),
                    mean=1.0,
                    sd=0.0,
                    inside=True,
                ),
            ),
            parameters=ParameterDrift(distance=0.35386410602798546, moved=0.7704, seeds=(2.78, 3.02, 2.65, 2.77)),
        ),
    ),
    "unexplained": replace(
        _DIVERGED,
        compared=Compared(updates=4, addresses=1840, unmatched=2),
        causes=(),
        unexplained=(
            Unexplained(
                site=_DIVERGED.site,
                ruled_out=("accumulation.normalise = sum", "accumulation.normalise = twice", "clip.moment = off"),
            ),
            Unexplained(site=Site(update=3, micro=-1, moment="update", kind="parameter", name="0.weight")),
        ),
    ),
    "missing": replace(
        _DIVERGED,
        first_divergence=FirstDivergence(
            update=3, micro=-1, moment="end", kind="count", name="updates", reference=4, candidate=3, max_abs=1
        ),
        site=None,
        causes=(),
    ),
    "absent_address": replace(
        _DIVERGED,
        first_divergence=FirstDivergence(
            update=-1,
            micro=-1,
            moment="start",
            kind="hyperparameter",
            name="0.weight.optimized",
            rank=1,
            reference=True,
            missing="candidate",
        ),
        site=None,
        causes=(),
    ),
    "nan": replace(
        _DIVERGED,
        first_divergence=replace(
            _LOSS, candidate=math.nan, ulp=4294967295, max_abs=math.nan, index=(1,), differing=3, total=8
        ),
        site=None,
        causes=(),
    ),
    "diverged_then_raised": replace(
        _DIVERGED,
        candidate_outcome=CandidateOutcome(
            status="raised",
            updates=2,
            error="ValueError: the loss is not finite",
            exit_code=1,
            last_words=("step 2 loss nan", "ValueError: the loss is not finite"),
        ),
    ),
    "golden_code": replace(
        _DIVERGED,
        command="golden",
        policy="exact",
        golden=GoldenCheck(
            file="goldens/tail.golden.json",
            recorded="2026-03-01",
            reason="first recording",
            moved="code",
            at=Moved(update=1, moment="consume", kind="gradient"),
            facts=(Fact(name="transformers", old="4.55.0", new="4.54.0"),),
            changes=(
                Change(
                    knob="accumulation.tail_divisor", old="actual", new="configured", effect="semantic", confirmed=True
                ),
            ),
        ),
        rerun="oracle golden check goldens/tail.golden.json",
    ),
    "golden_environment": replace(
        _MATCH,
        command="golden",
        verdict="rounding",
        policy="exact",
        passed=False,
        golden=GoldenCheck(
            file="tail.golden.json",
            recorded="2026-03-01",
            reason="first recording",
            moved="environment",
            at=Moved(update=0, moment="consume", kind="gradient"),
            reference_at=Moved(update=0, moment="update", kind=""),
            facts=(
                Fact(name="torch", old="2.12.0", new="2.13.0"),
                Fact(name="cpu capability", old="AVX2", new="AVX512"),
            ),
        ),
        rerun="oracle golden check tail.golden.json",
    ),
    "nondeterministic": replace(
        _MATCH,
        verdict="nondeterministic",
        passed=False,
        compared=Compared(updates=3, addresses=901),
        self_check=SelfCheck(identical=False, addresses=901),
        first_divergence=_LOSS,
    ),
    "killed": replace(
        _MATCH,
        verdict="not_comparable",
        passed=False,
        compared=Compared(updates=2, addresses=0),
        self_check=None,
        candidate_outcome=CandidateOutcome(
            status="killed",
            updates=2,
            signal="SIGKILL",
            exit_code=-9,
            last_words=("loading data", "``` \x1b[31mout of memory\x1b[0m <oom>"),
        ),
    ),
    "timed_out": replace(
        _MATCH,
        verdict="not_comparable",
        passed=False,
        compared=Compared(updates=0, addresses=0),
        candidate_outcome=CandidateOutcome(status="timed_out", timeout=120.0),
    ),
    "resumed": replace(
        _DIVERGED,
        command="resume",
        policy="exact",
        causes=(
            Cause(
                knob="resume.missing",
                reference="",
                candidate="cursor,rng",
                status="confirmed",
                effect="semantic",
                at=At(update=1, moment="batch"),
                identical_through_update=3,
                evidence=("the first batch is the uninterrupted run's, 1 micro-batch later",),
            ),
        ),
        resumptions=(
            Resumption(cut="1", death="exception", verdict="match", began=0),
            Resumption(
                cut="2",
                death="exception",
                verdict="diverged",
                saved=1,
                began=1,
                at=At(update=1, moment="batch"),
                missing="cursor,rng",
                status="confirmed",
            ),
            Resumption(cut="2.1", death="SIGKILL", verdict="match", saved=2, began=2, began_micro=1),
            Resumption(
                cut="3:save+1000",
                death="SIGKILL",
                verdict="not_comparable",
                saved=2,
                reason="the resumed run raised: ValueError: \x1b[31mthe file is not whole\x1b[0m\nmore of it",
            ),
        ),
        rerun="oracle resume ragged_tail --trainer transformers --cut all",
    ),
    "trained_nothing": replace(
        _MATCH,
        verdict="not_comparable",
        passed=False,
        reason="no parameter changed in the candidate",
    ),
}


@pytest.fixture(scope="session")
def samples() -> dict[str, Result]:
    """Results by what they show."""
    return _SAMPLES


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for `sample` runs once for each of them; `sample` is (what it shows, result)."""
    if "sample" in metafunc.fixturenames:
        metafunc.parametrize("sample", _SAMPLES.items(), ids=_SAMPLES)
