"""A profile as text and as a page."""

from __future__ import annotations

from oracle.profile.render import lines, markdown
from oracle.profile.schema import Change, Entry, Move, Number, Profile, Source

PROFILE = Profile(
    trainer="t",
    versions={"python": "3.11.7", "torch": "2.13.0", "t": "1.0", "u": "2.0"},
    knobs=(
        Entry(
            knob="optimizer.kernel",
            value="fused",
            status="confirmed",
            probes=("decay",),
            source=Source(kind="default", name="Arguments.optim", value="'adamw_torch_fused'"),
        ),
        Entry(
            knob="accumulation.tail", value=None, status="undetermined", left=("carry", "carry_drop"), reason="no run"
        ),
        Entry(knob="data.order", asked="random_sampler", value="seeded_epoch", status="confirmed", probes=("s",)),
    ),
    numbers=(Number(name="max_norm", recipe=None, trainer=1.0, source=Source(kind="hidden")),),
    changes=(Change(subject="precision", asked="float16", seen="float32", probes=("a", "b", "c", "d")),),
    moves=(Move(setting="Arguments(optim='x')", knob="optimizer.kernel", before="fused", after="loop", probe="decay"),),
    unexplained={"p": "update 0"},
    skipped={"q": "it needs v"},
)

TEXT = """\
Semantics of t 1.0 with u 2.0 (python 3.11.7, torch 2.13.0, t 1.0, u 2.0)

Knobs:
  optimizer.kernel                   fused                confirmed     default of Arguments.optim='adamw_torch_fused'  decay
  accumulation.tail                  carry or carry_drop  undetermined                                                  no run
  data.order (asked random_sampler)  seeded_epoch         confirmed                                                     s

Numbers:
  max_norm  none  1.0  hidden

Asked and seen:
  precision  float16  float32    4 probes

What moves a knob:
  Arguments(optim='x')  optimizer.kernel  fused  loop  decay

Unexplained:
  p  update 0

Not probed:
  q  it needs v"""  # noqa: E501


def test_text():
    assert "\n".join(lines(PROFILE)) == TEXT


def test_page():
    page = markdown(PROFILE, "oracle semantics --trainer t")
    assert page.startswith("# Semantics of t 1.0 with u 2.0\n\nMeasured with python 3.11.7, torch 2.13.0, t 1.0,")
    source = "default of Arguments.optim='adamw_torch_fused'"
    assert f"| `optimizer.kernel` | `fused` | confirmed | {source} | decay |" in page
    assert "| `data.order` (asked random_sampler) | `seeded_epoch` | confirmed |  | s |" in page
    assert "## Not probed" in page
