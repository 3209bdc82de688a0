"""The wording of reports: a snapshot for each kind of result, and what every format must do whatever the result."""

from __future__ import annotations

import dataclasses
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from oracle.report import html, junit, markdown, text
from oracle.report.outline import SHOWN, headline
from oracle.result import CandidateOutcome, Result

SNAPSHOTS = Path(__file__).parent / "snapshots"
FORMATS = {"txt": text, "md": markdown, "html": html, "xml": junit}


def check_snapshot(name: str, suffix: str, result: Result) -> None:
    path = SNAPSHOTS / f"{name}.{suffix}"
    report = FORMATS[suffix].render(result)
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.write_text(report)
    assert report == path.read_text()


def test_the_text_is_the_snapshot(sample: tuple[str, Result]) -> None:
    check_snapshot(sample[0], "txt", sample[1])


@pytest.mark.parametrize("suffix", ["md", "html", "xml"])
@pytest.mark.parametrize("name", ["bug_report", "diverged", "killed", "match", "several_causes"])
def test_other_formats_are_the_snapshot(samples: dict[str, Result], name: str, suffix: str) -> None:
    check_snapshot(name, suffix, samples[name])


def test_every_snapshot_has_its_result(samples: dict[str, Result]) -> None:
    assert {path.stem for path in SNAPSHOTS.iterdir()} == set(samples)


def test_the_first_line_names_verdict_and_place_and_the_last_the_command(sample: tuple[str, Result]) -> None:
    _, result = sample
    lines = text.render(result).splitlines()
    assert lines[0].startswith(result.verdict.upper().replace("_", " "))
    assert lines[0] == headline(result)
    assert lines[-1].strip() == result.rerun


def test_a_report_has_no_adjective_of_size(sample: tuple[str, Result]) -> None:
    sizes = r"\b(tiny|small|slight|slightly|large|huge|big|significant|significantly|minor|major|very)\b"
    assert not re.search(sizes, text.render(sample[1]))


class _Tags(HTMLParser):
    """Collects the open tags and the text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_every_tag_of_the_page_is_closed_and_nothing_is_left_out(sample: tuple[str, Result]) -> None:
    page = _Tags()
    page.feed(html.render(sample[1]))
    assert page.open == []
    shown = "".join(page.words)
    for line in text.render(sample[1]).splitlines():
        for part in re.split(r"^  \| |(?<=:) |  +", line):
            assert part in shown


def test_the_page_loads_nothing_and_runs_nothing(samples: dict[str, Result]) -> None:
    for result in samples.values():
        assert not re.search(r"<script|<link|<img|https?:|url\(", html.render(result))


def hostile(result: Result) -> Result:
    words = ("<script>alert(1)</script>", "]]>&", "\x1b[31mred\x1b[0m\x07\x00", "\ud800", "`````")
    outcome = CandidateOutcome(status="raised", error="E: <b>\x1b[2J", last_words=words)
    return dataclasses.replace(result, candidate_outcome=outcome, rerun="oracle check '<a>'")


@pytest.mark.parametrize("suffix", FORMATS)
def test_what_the_candidate_printed_cannot_break_a_report(samples: dict[str, Result], suffix: str) -> None:
    report = FORMATS[suffix].render(hostile(samples["diverged"]))
    report.encode()
    assert not set(report) & {chr(code) for code in range(32) if chr(code) != "\n"}
    if suffix in ("html", "xml"):
        assert "<script>" not in report
    if suffix == "xml":
        ElementTree.fromstring(report)


@pytest.mark.parametrize(
    ("name", "child"),
    [
        ("match", "system-out"),
        ("rounding", "system-out"),
        ("diverged", "failure"),
        ("nondeterministic", "error"),
        ("killed", "error"),
    ],
)
def test_junit_fails_where_the_exit_code_does(samples: dict[str, Result], name: str, child: str) -> None:
    suites = ElementTree.fromstring(junit.render(samples[name]))
    (case,) = suites.iter("testcase")
    assert [element.tag for element in case] == [child]
    counted = {"failure": int(suites.attrib["failures"]), "error": int(suites.attrib["errors"])}
    assert counted == {"failure": int(child == "failure"), "error": int(child == "error")}
    assert (child == "system-out") == (samples[name].exit_code == 0)


def test_a_long_list_is_cut_and_says_where_the_rest_is(samples: dict[str, Result]) -> None:
    result = samples["match_with_latent"]
    assert len(result.latent) == SHOWN + 2
    assert "and 2 more: --json FILE has all" in text.render(result)
    assert "more:" not in text.render(dataclasses.replace(result, latent=result.latent[:SHOWN]))


def test_an_agreeing_loss_is_not_called_an_input_of_its_step(samples: dict[str, Result]) -> None:
    (ruled_out,) = (line for line in text.render(samples["diverged"]).splitlines() if line.startswith("Ruled out"))
    assert ruled_out == "Ruled out: batch, parameters, random state (identical on entry)."
