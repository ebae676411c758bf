"""A build's report as JUnit XML, with a step as a test: Jenkins, GitLab and many others show it.

Elements and attributes are those of the schema of Jenkins' xUnit plugin (junit-10.xsd).
"""

from __future__ import annotations

import re
from typing import Any
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from trtspec.pipeline.report.report import BuildFailure, BuildReport, StepReport

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def to_junit(report: BuildReport) -> str:
    """Returns the XML of a report; a failure outside the steps is an error of a test of its own, `build`."""
    failure, steps = report.failure, list(report.steps)
    outside = failure is not None and all(step.status != "failed" for step in steps)
    if outside or not steps:
        steps.append(StepReport("build", "", "failed" if outside else "run", 0))
    counts: dict[str, Any] = {
        "tests": str(len(steps)),
        "failures": str(sum(step.status == "failed" for step in steps) - outside),
        "errors": str(int(outside)),
        "skipped": str(sum(step.status == "not run" for step in steps)),
        "time": f"{report.seconds:.3f}",
    }
    root = Element("testsuites")
    suite = SubElement(root, "testsuite", name=_xml(f"trtspec {report.name}"), **counts)
    for step in steps:
        case = SubElement(suite, "testcase", name=_xml(step.name), classname=_xml(report.name))
        case.set("time", f"{step.seconds:.3f}")
        if step.status == "not run":
            SubElement(case, "skipped", message="the build ended before it")
        if step.status == "failed" and failure:
            _explain(SubElement(case, "error" if outside else "failure"), failure)
    indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def _explain(element: Element, failure: BuildFailure) -> None:
    element.set("message", _xml(failure.problem))
    element.text = _xml("\n".join(filter(None, (*failure.lines, failure.repair))))


def _xml(text: str) -> str:
    """Returns the text with U+FFFD for what XML cannot hold, such as the escape of a colour."""
    return _NOT_XML.sub("\ufffd", text)
