"""The page says in its cells what was proven, and below them what was not."""

from __future__ import annotations

from oracle.matrix.cell import Answer, Cell
from oracle.matrix.table import label, page, said


def cells(*answers: tuple[str, str, Answer]) -> dict[Cell, Answer]:
    return {
        Cell(trainer="skorch", requirements=("skorch==1.4.0",), task=task, variant=variant): answer
        for variant, task, answer in answers
    }


def test_a_cell_in_words() -> None:
    for answer, words in (
        (Answer(key="", state="match"), "match"),
        (Answer(key="", state="rounding", rounds="update 1, consume: gradient of w"), "rounding (floor)"),
        (
            Answer(key="", state="rounding", causes=("optimizer.kernel = fused",)),
            "rounding: `optimizer.kernel = fused`",
        ),
        (
            Answer(key="", state="explained", causes=("a = b", "c = d"), rounds="from update 3 on"),
            "explained: `a = b`, `c = d`, floor from update 3 on",
        ),
        (Answer(key="", state="suggested", causes=("a = b",), doubts=("c = d",)), "suggested: `a = b`, `c = d`?"),
        (
            Answer(key="", state="unexplained", places=("update 1", "update 2"), causes=("a = b",)),
            "**unexplained** at update 1 and 1 more; `a = b`",
        ),
        (Answer(key="", state="failed", reason="it hung"), "**failed**"),
        (Answer(key="", state="refused", reason="no"), "refused"),
    ):
        assert said(answer) == words


def test_what_is_not_proven_stands_below_with_its_command() -> None:
    text = page(
        cells(
            ("own", "tokens", Answer(key="", state="match", versions={"skorch": "1.4.0"})),
            ("own", "decoder", Answer(key="", state="unexplained", places=("update 1, consume: gradient of w",))),
            ("clip", "tokens", Answer(key="", state="failed", reason="it hung | there")),
            ("clip", "decoder", Answer(key="", state="refused", reason="no such thing")),
        )
    )
    assert "4 cells: 1 match, 1 unexplained, 1 refused, 1 failed." in text
    assert "| skorch 1.4.0 | `own` | match | **unexplained** at update 1, consume: gradient of w |" in text
    assert "| skorch 1.4.0 | `clip` | **failed** | refused |" in text
    below = text.partition("## What is not bit-identical under named decisions\n\n")[2]
    assert below == (
        "- skorch 1.4.0, `own`, decoder: unexplained at update 1, consume: gradient of w\n"
        "  `oracle check decoder --trainer skorch --with skorch==1.4.0`\n"
        "- skorch 1.4.0, `clip`, tokens: failed: it hung | there\n"
        "  `oracle check tokens --trainer skorch --with skorch==1.4.0 --set 'clip={max_norm = 0.05}'`\n\n"
        "## What is refused\n\n"
        "- skorch 1.4.0: no such thing\n  (`clip` decoder)\n"
    )


def test_a_page_of_matches_has_nothing_below() -> None:
    text = page(cells(("own", "tokens", Answer(key="", state="match"))))
    assert text.endswith("## What is not bit-identical under named decisions\n\nNothing.\n")


def test_a_trainer_that_is_used_as_installed_has_no_release() -> None:
    assert label(Cell(trainer="accelerate", requirements=(), task="tokens", variant="own")) == "accelerate"
    assert (
        label(Cell(trainer="trl", requirements=("trl==1.16.0", "peft==0.21.2"), task="t", variant="own"))
        == "trl 1.16.0"
    )
