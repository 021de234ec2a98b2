"""The answer as JUnit XML: a blocking DISABLE is a failure, HOLD is skipped, unusable data is an error.

Valid against the schema of the Jenkins xUnit plugin (junit-10.xsd) and against that of the Ant task (JUnit.xsd);
the second is the stricter one on attributes and order.
"""

from __future__ import annotations

import re
from datetime import UTC
from typing import Final
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from shadowspec.rollout.check.answer import Answer, Finding
from shadowspec.rollout.check.outcome import Outcome
from shadowspec.rollout.check.plain_text import answer_lines, finding_title

HOSTNAME: Final = "localhost"  # the schema requires one; the answer does not depend on the machine
_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(answer: Answer) -> str:
    """One suite with a case per finding; a refusal is one case with an error."""
    endpoint = _clean(answer.question.endpoint)
    cases = [_case(endpoint, finding) for finding in answer.findings]
    if answer.problem is not None:
        case = _new_case(endpoint, "check")
        _add(case, "error", "refused", answer.problem)
        cases.append(case)
    counts = {name: sum(case.find(name) is not None for case in cases) for name in ("failure", "error", "skipped")}
    root = Element("testsuites")
    suite = SubElement(
        root,
        "testsuite",
        {
            "name": f"shadowspec check {endpoint}",
            "package": "shadowspec",
            "id": "0",
            "timestamp": f"{answer.checked_at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}",
            "hostname": HOSTNAME,
            "tests": str(len(cases)),
            "failures": str(counts["failure"]),
            "errors": str(counts["error"]),
            "skipped": str(counts["skipped"]),
            "time": "0",
        },
    )
    properties = SubElement(suite, "properties")
    for name, value in (
        ("outcome", answer.shown_outcome.value),
        ("config", answer.config_name or ""),
        ("fingerprints", " ".join(answer.fingerprints)),
        ("engines", "; ".join(answer.engines)),
        ("verdict_engine", "" if answer.config_name is None else answer.verdict_engine),
        ("decisions", " ".join(str(d.decision_id) for finding in answer.findings for d in finding.decisions)),
    ):
        SubElement(properties, "property", {"name": name, "value": _clean(value)})
    suite.extend(cases)
    SubElement(suite, "system-out").text = _clean("\n".join(answer_lines(answer)))
    SubElement(suite, "system-err")
    indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{tostring(root, encoding="unicode")}\n'


def _case(endpoint: str, finding: Finding) -> Element:
    case = _new_case(endpoint, finding_title(finding))
    if finding.outcome is Outcome.ENABLE:
        return case
    if finding.is_blocking and finding.outcome is Outcome.DISABLE:
        _add(case, "failure", finding.outcome.value, finding.reason)
    elif finding.is_blocking and finding.outcome is Outcome.UNUSABLE:
        _add(case, "error", finding.outcome.value, finding.reason)
    else:  # HOLD, and any outcome of a slice with little traffic
        SubElement(case, "skipped", {"message": _clean(f"{finding.outcome}: {finding.reason}")})
    return case


def _new_case(endpoint: str, name: str) -> Element:
    return Element("testcase", {"classname": f"shadowspec.{endpoint}", "name": _clean(name), "time": "0"})


def _add(case: Element, kind: str, type_: str, message: str) -> None:
    SubElement(case, kind, {"type": type_, "message": _clean(message)}).text = _clean(message)


def _clean(text: str) -> str:
    """The text without characters that XML cannot represent."""
    return _NOT_XML.sub("\ufffd", text)
