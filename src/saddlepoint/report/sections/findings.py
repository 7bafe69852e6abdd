"""What speaks against the number, the number, and what others say."""

from __future__ import annotations

from collections.abc import Sequence

from saddlepoint.auditing.result import Level, Symptom
from saddlepoint.report.document import between, percent, quiet, table
from saddlepoint.report.markup import Markup, tag
from saddlepoint.report.subject import Part, Subject

LEVELS: tuple[Level, ...] = ("serious", "warning", "note")
SHAPES: dict[Level, str] = {"serious": "■", "warning": "▲", "note": "●"}  # a level is never told by colour alone


def symptoms(subject: Subject) -> Part:
    """Every symptom, the serious ones first."""
    none = (
        "No symptom was met: neither the checks before the attacks nor what the attacks gave away raises a doubt. They cannot "
        "rule out an attack that was not tried."
    )
    return Part("What speaks against the number", symptom_list(subject.audit.symptoms, none))


def symptom_list(found: Sequence[Symptom], none: str) -> tuple[Markup]:
    """The list, or the remark that there is nothing on it."""
    if not found:
        return (quiet(none),)
    items = (
        tag(
            "li",
            tag("span", tag("span", f"{SHAPES[s.level]} ", aria_hidden="true"), f"{s.level}: {s.name}", class_="label"),
            tag("p", s.message[:1].upper() + s.message[1:]),
            class_=s.level,
        )
        for s in sorted(found, key=lambda symptom: LEVELS.index(symptom.level))
    )
    return (tag("ul", *items, class_="symptoms"),)


def numbers(subject: Subject) -> Part:
    """Clean and robust accuracy, the interval, the price."""
    audit = subject.audit
    forward, backward = (float(t.double().mean()) for t in (audit.examples.forward, audit.examples.backward))
    cards = (
        ("clean accuracy", percent(audit.clean_accuracy), f"of {audit.n} images, before any attack"),
        ("robust accuracy, at most", percent(audit.robust_accuracy), "after every attack, judged afresh"),
        (f"{100 * audit.interval.level:.0f} % interval", between(audit.interval.low, audit.interval.high),
         "covers which images were drawn, not the strength of the attacks"),
        ("passes per image", f"{forward + backward:,.0f}", f"{forward:,.1f} forward and {backward:,.1f} backward"),
    )  # fmt: skip
    drawn = (
        tag("div", tag("span", name), tag("b", value), tag("span", text, class_="quiet"), class_="card")
        for name, value, text in cards
    )
    return Part("The number", (tag("div", *drawn, class_="numbers"),))


def others(subject: Subject) -> Part | None:
    """Published figures beside ours, where there are any."""
    known, ours = subject.published, subject.audit.robust_accuracy
    told = {"claimed": known.claimed, "the static net inside": known.static, "AutoAttack": known.autoattack}
    lines = [(name, percent(share), f"{100 * (share - ours):+.1f}") for name, share in told.items() if share is not None]
    if not lines:
        return None
    source = [quiet(f"From {known.source}.")] if known.source else []
    return Part("What others report", (table(("robust accuracy", "published", "above ours, points"), lines), *source))
