"""Results for continuous integration: requirements, a JUnit file and a Markdown summary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from saddlepoint.audits.result import Audit
from saddlepoint.audits.statistics import fewer_images
from saddlepoint.audits.verdict import claim_refuted
from saddlepoint.phrases import at_most, percent
from saddlepoint.reports.export import markdown

# XML 1.0 cannot contain other control characters, not even as references.
_XML_WHITESPACE = "\t\n\r"
_MOST_DIGITS = 9  # after the point of a percentage


@dataclass(frozen=True)
class Requirement:
    """A condition that an audit has to meet.

    Args:
        name: what is required.
        met: whether the audit meets it.
        message: what was required and what was found.
    """

    name: str
    met: bool
    message: str


def requirements(audit: Audit, fail_under: float | None = None) -> tuple[Requirement, ...]:
    """What the audit has to meet: its claim, if it has one, and a lowest accuracy.

    Args:
        audit: the audit.
        fail_under: the lowest robust accuracy that is accepted, in [0, 1]; default None, any.
    """
    return tuple(_requirements(audit, fail_under))


def _requirements(audit: Audit, fail_under: float | None) -> Iterator[Requirement]:
    found = f"robust accuracy is {at_most(audit.robust_accuracy)} ({audit.interval})"
    claim = audit.compared.claim
    if claim is not None:
        refuted = claim_refuted(claim, audit.interval, audit.n)
        yield Requirement("claim", not refuted, f"the claim is {percent(claim)}; {found}.")
    if fail_under is not None:
        below = fewer_images(audit.robust_accuracy, fail_under, audit.n)
        lowest = percent(fail_under)
        if below and lowest == percent(audit.robust_accuracy):
            digits = _distinguishing(fail_under, audit.robust_accuracy)
            lowest = percent(fail_under, digits)
            highest = percent(audit.robust_accuracy, digits)
            found = f"robust accuracy is ≤ {highest} ({audit.interval})"
        message = f"at least {lowest} is required; {found}."
        yield Requirement("robust accuracy", not below, message)


def _distinguishing(share: float, other: float) -> int:
    """The fewest digits after the point with which two percentages are different numbers."""
    for digits in range(1, _MOST_DIGITS):
        shown = {percent(share, digits), percent(other, digits)}
        if len(shown) == 2 and all(text[0].isdigit() for text in shown):  # not "more than 99.9 %"
            return digits
    return _MOST_DIGITS


def junit(audit: Audit, required: Sequence[Requirement]) -> str:
    """A JUnit file: one test case for the audit, and one for each requirement.

    The audit itself passes whatever its verdict is; the verdict is its output.

    Args:
        audit: the audit.
        required: what `requirements` returned.
    """
    failed = sum(not requirement.met for requirement in required)
    name = _xml(f"saddlepoint: {audit.target}")
    suite = ElementTree.Element(
        "testsuite",
        name=name,
        tests=str(1 + len(required)),
        failures=str(failed),
        errors="0",
        skipped="0",
        time=f"{audit.seconds:.3f}",
    )
    case = ElementTree.SubElement(
        suite, "testcase", classname=name, name="audit", time=f"{audit.seconds:.3f}"
    )
    ElementTree.SubElement(case, "system-out").text = _xml(audit.summary())
    for requirement in required:
        case = ElementTree.SubElement(
            suite, "testcase", classname=name, name=_xml(requirement.name), time="0.000"
        )
        if not requirement.met:
            message = _xml(requirement.message)
            ElementTree.SubElement(case, "failure", message=message).text = message
    ElementTree.indent(suite)
    text = ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)
    return f"{text}\n"


def markdown_summary(audit: Audit, required: Sequence[Requirement]) -> str:
    """A summary for the page of a job: the verdict, the requirements, warnings and attacks.

    Args:
        audit: the audit.
        required: what `requirements` returned.
    """
    return "\n".join(_summary_lines(audit, required)) + "\n"


def _summary_lines(audit: Audit, required: Sequence[Requirement]) -> Iterator[str]:
    yield f"## {markdown(audit.target)}: {audit.verdict}"
    yield ""
    yield markdown(audit.summary())
    yield ""
    for requirement in required:
        state = "met" if requirement.met else "**not met**"
        yield f"- {markdown(requirement.name)}, {state}: {markdown(requirement.message)}"
    for symptom in audit.symptoms:
        yield f"- {symptom.level} ({markdown(symptom.name)}): {markdown(symptom.message)}"
    if required or audit.symptoms:
        yield ""
    yield "| attack | accuracy | worst case so far | forward / backward |"
    yield "|---|---:|---:|---:|"
    yield f"| clean | {percent(audit.clean_accuracy)} | {percent(audit.clean_accuracy)} | |"
    for row in audit.rows:
        passes = f"{row.forward:.1f} / {row.backward:.1f}"
        accuracies = f"{percent(row.robust_accuracy)} | {percent(row.running)}"
        yield f"| {markdown(row.name)} | {accuracies} | {passes} |"


def _xml(text: str) -> str:
    """The text without characters that XML forbids."""
    return "".join(c for c in text if c.isprintable() or c in _XML_WHITESPACE)
