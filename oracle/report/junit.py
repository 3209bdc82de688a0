"""A report as JUnit XML, one test case, for CI systems that show such files."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from oracle.report import text
from oracle.report.outline import headline
from oracle.result import Result

# What XML 1.0 cannot hold.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(result: Result) -> str:
    """The report as JUnit XML: a failure where the exit code is 1, an error where nothing was decided."""
    kind = {0: None, 1: "failure", 3: "error"}[result.exit_code]
    seconds = f"{result.seconds.get('total', 0):.3f}"
    counts = {
        "tests": "1",
        "failures": str(int(kind == "failure")),
        "errors": str(int(kind == "error")),
        "skipped": "0",
    }
    suites = ElementTree.Element("testsuites", counts, time=seconds)
    suite = ElementTree.SubElement(suites, "testsuite", counts, name=f"oracle {result.command}", time=seconds)
    name = f"{result.candidate.get('trainer', 'candidate')} on {result.reference.get('task', 'task')}"
    case = ElementTree.SubElement(suite, "testcase", classname=f"oracle.{result.command}", name=name, time=seconds)
    report = _FORBIDDEN.sub("?", text.render(result))
    if kind:
        element = ElementTree.SubElement(case, kind, type=result.verdict, message=_FORBIDDEN.sub("?", headline(result)))
        element.text = report
    else:
        ElementTree.SubElement(case, "system-out").text = report
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suites, encoding="unicode") + "\n"
