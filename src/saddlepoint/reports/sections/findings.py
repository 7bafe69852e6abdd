"""What speaks against the number, the number, and what others say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from saddlepoint.audits.result import Level, State, Symptom
from saddlepoint.audits.verdict import Comparisons
from saddlepoint.reports.context import Part, Subject
from saddlepoint.reports.document import between, facts, percent, quiet, table
from saddlepoint.reports.markup import Markup, tag

LEVELS: tuple[Level, ...] = ("serious", "warning", "note")
STATES: tuple[State, ...] = ("fail", "not run", "pass", "does not apply")
MARKS: dict[State, str] = {"fail": "✗", "not run": "○", "pass": "✓", "does not apply": "–"}
SHAPES: dict[Level, str] = {
    "serious": "■",
    "warning": "▲",
    "note": "●",
}  # a level is never told by color alone


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
            tag(
                "span",
                tag("span", f"{SHAPES[s.level]} ", aria_hidden="true"),
                f"{s.level}: {s.name}",
                class_="label",
            ),
            tag("p", s.message[:1].upper() + s.message[1:]),
            *([tag("p", f"Remedy: {s.remedy}", class_="quiet")] if s.remedy else []),
            class_=s.level,
        )
        for s in sorted(found, key=lambda symptom: LEVELS.index(symptom.level))
    )
    return (tag("ul", *items, class_="symptoms"),)


def checklist(subject: Subject) -> Part:
    """Every item with its evidence; what failed or was not run comes first."""
    items = sorted(subject.audit.checklist, key=lambda item: STATES.index(item.state))
    if not items:
        return Part(
            "The checklist",
            (
                quiet(
                    "It was not run: the record is from before there was one, so no verdict rests on it."
                ),
            ),
        )
    lines = [(item.name, f"{MARKS[item.state]} {item.state}", item.evidence) for item in items]
    told = (
        "The steps of Croce et al. 2022 (Sec. 4) and the signs of Carlini et al. 2019, told by what was sent and by small trials. "
        "Nothing holds while an item that applies failed or was not run."
    )
    return Part("The checklist", (table(("item", "state", "evidence"), lines), quiet(told)))


def numbers(subject: Subject) -> Part:
    """Clean and robust accuracy, the interval, the price."""
    audit = subject.audit
    forward, backward = (
        float(t.double().mean()) for t in (audit.examples.forward, audit.examples.backward)
    )
    cards = (
        ("clean accuracy", percent(audit.clean_accuracy), f"of {audit.n} images, before any attack"),
        ("robust accuracy, at most", percent(audit.robust_accuracy), "after every attack, judged afresh"),
        (f"{100 * audit.interval.level:.0f} % interval", between(audit.interval.low, audit.interval.high),
         f"covers {audit.interval.covers}; not the strength of the attacks"),
        ("passes per image", f"{forward + backward:,.0f}", f"{forward:,.1f} forward and {backward:,.1f} backward"),
    )  # fmt: skip
    drawn = (
        tag(
            "div",
            tag("span", name),
            tag("b", value),
            tag("span", text, class_="quiet"),
            class_="card",
        )
        for name, value, text in cards
    )
    held = dict(_held(audit.compared))
    return Part(
        "The number", (tag("div", *drawn, class_="numbers"), *([facts(held)] if held else []))
    )


def _held(compared: Comparisons) -> Iterator[tuple[str, str]]:
    """What the number is held against."""
    if compared.claim is not None:
        yield "claimed", percent(compared.claim)
    if compared.standard is not None:
        yield "left by attacks that do not know the defense", percent(compared.standard)
    if (static := compared.static) is not None:
        yield (
            "the static net inside",
            f"{percent(static.clean_accuracy)} clean, at most {percent(static.robust_accuracy)} robust",
        )
        yield (
            "paired comparison",
            f"{static.only_defense} images stand only with the defense, {static.only_static} only without it; McNemar's exact "
            f"test, p = {static.p:.2g}",
        )
    if (cost := compared.cost) is not None:
        yield (
            "cost of an answer",
            f"{cost.times:.1f} times the time of the static net, which is asked {cost.calls:.1f} times",
        )
    if (proven := compared.proven) is not None:
        yield "robust accuracy, at least", f"{percent(proven.accuracy)}, proven by {proven.method}"


def others(subject: Subject) -> Part | None:
    """Published figures beside ours, where there are any."""
    known = subject.published
    ours = subject.audit.robust_accuracy
    told = {
        "claimed": known.claimed,
        "the static net inside": known.static,
        "AutoAttack": known.autoattack,
    }
    lines = [
        (name, percent(share), f"{100 * (share - ours):+.1f}")
        for name, share in told.items()
        if share is not None
    ]
    if not lines:
        return None
    source = [quiet(f"From {known.source}.")] if known.source else []
    return Part(
        "What others report",
        (table(("robust accuracy", "published", "above ours, points"), lines), *source),
    )
