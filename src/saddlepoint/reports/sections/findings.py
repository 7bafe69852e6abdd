"""Warnings, checklist, clean and robust accuracy, and published results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from saddlepoint import phrases
from saddlepoint.audits.result import Item, State, Symptom
from saddlepoint.audits.verdict import Comparisons
from saddlepoint.phrases import agree, count, how_often, signed, times
from saddlepoint.reports.context import ReportContext, Section
from saddlepoint.reports.document import (
    at_least,
    at_most,
    collapsible,
    facts,
    muted,
    number_cards,
    percent,
    percent_range,
    table,
)
from saddlepoint.reports.markup import Markup, tag
from saddlepoint.reports.verdicts import LEVELS, SHAPES

STATES = (State.FAIL, State.NOT_RUN, State.PASS, State.NOT_APPLICABLE)
MARKS = {State.FAIL: "✗", State.NOT_RUN: "○", State.PASS: "✓", State.NOT_APPLICABLE: "–"}


_OPEN = (State.FAIL, State.NOT_RUN)  # items that keep an estimate from being credible


def warnings(context: ReportContext) -> Section:
    """List every symptom, serious ones first."""
    none = (
        "No warnings: neither the checks before the attacks nor the results of the attacks "
        "indicate a problem. This does not rule out that another attack is stronger."
    )
    return Section("Warnings", symptom_list(context.audit.symptoms, none))


def symptom_list(symptoms: Sequence[Symptom], none: str) -> tuple[Markup]:
    """Return the list of symptoms, serious ones first.

    Args:
        symptoms: The symptoms.
        none: The text to show if there are no symptoms.
    """
    if not symptoms:
        return (muted(none),)
    ordered = sorted(symptoms, key=lambda symptom: LEVELS.index(symptom.level))
    return (tag("ul", *map(_symptom, ordered), class_="symptoms"),)


def _symptom(symptom: Symptom) -> Markup:
    message = symptom.message[:1].upper() + symptom.message[1:]
    remedy = [muted(f"Remedy: {symptom.remedy}")] if symptom.remedy else []
    shape = tag("span", f"{SHAPES[symptom.level]} ", aria_hidden="true")
    label = tag("span", shape, f"{symptom.level}: {symptom.name}", class_="label")
    return tag("li", label, tag("p", message), *remedy, class_=symptom.level)


def recognized(context: ReportContext) -> Section | None:
    """List what was recognized in the target, which decides the attacks."""
    found = context.audit.recognized
    if not found:
        return None
    return Section("What was recognized", (facts({one.name: one.evidence for one in found}),))


def checklist(context: ReportContext) -> Section:
    """Show every item with its evidence; items that failed or were not run come first."""
    items = sorted(context.audit.checklist, key=lambda item: STATES.index(item.state))
    if not items:
        old = "Not run: this record was written before audits had a checklist."
        return Section("Checklist", (muted(old),))
    needed = [item for item in items if item.state in _OPEN]
    settled = [item for item in items if item.state not in _OPEN]
    explanation = (
        "The steps of Croce et al. 2022 (Sec. 4) and the warning signs of Carlini et al. 2019, "
        "checked on the attacks that were run and on diagnostics of some images. An estimate is "
        "not credible while an item that applies failed or was not run."
    )
    shown = [_items(needed)] if needed else []
    folded = [collapsible(_totals(settled), _items(settled))] if settled else []
    return Section("Checklist", (*shown, *folded, muted(explanation)))


def _items(items: Sequence[Item]) -> Markup:
    lines = [(item.name, f"{MARKS[item.state]} {item.state}", item.evidence) for item in items]
    return table(("item", "state", "evidence"), lines, class_="words")


def _totals(items: Sequence[Item]) -> str:
    """Return the title of the folded items: `✓ pass: 12, – not applicable: 3`."""
    totals = Counter(item.state for item in items)
    return ", ".join(f"{MARKS[state]} {state}: {number}" for state, number in totals.items())


def accuracies(context: ReportContext) -> Section:
    """Show clean accuracy, robust accuracy, its interval and its cost."""
    audit = context.audit
    forward = float(audit.examples.forward.double().mean())
    backward = float(audit.examples.backward.double().mean())
    cards = (
        (
            "clean accuracy",
            percent(audit.clean_accuracy),
            f"on {count(audit.n, 'image')}, without attack",
        ),
        (
            "robust accuracy",
            at_most(audit.robust_accuracy),
            "upper bound: worst point of all attacks, re-evaluated",
        ),
        (
            f"{phrases.percent(audit.interval.level, 0)} interval",
            percent_range(audit.interval.low, audit.interval.high),
            f"covers {audit.interval.covers}; not the strength of the attacks",
        ),
        (
            "passes per image",
            f"{forward + backward:,.0f}",
            f"{forward:,.1f} forward and {backward:,.1f} backward",
        ),
    )
    return Section("Clean and robust accuracy", (number_cards(cards, class_="numbers four"),))


def comparisons(context: ReportContext) -> Section | None:
    """Show what the robust accuracy is compared with, if there is anything."""
    compared = dict(_comparisons(context.audit.compared))
    return Section("Comparisons", (facts(compared),)) if compared else None


def _comparisons(compared: Comparisons) -> Iterator[tuple[str, str]]:
    """Yield the name and the value of everything that the robust accuracy is compared with."""
    if compared.claim is not None:
        yield "claimed robust accuracy", percent(compared.claim)
    if compared.standard is not None:
        yield "robust accuracy under non-adaptive attacks", percent(compared.standard)
    if (static := compared.static) is not None:
        yield (
            "static model inside the defense",
            f"{percent(static.clean_accuracy)} clean accuracy, "
            f"{at_most(static.robust_accuracy)} robust accuracy",
        )
        yield (
            "paired comparison",
            f"{count(static.only_defense, 'image')} {agree(static.only_defense, 'is', 'are')} "
            f"robust only with the defense, {static.only_static} only without it; McNemar's exact "
            f"test, p = {static.p:.2g}",
        )
    if (cost := compared.cost) is not None:
        yield (
            "inference cost",
            f"{times(cost.times)} the time of the static model, which the defense evaluates "
            f"{how_often(cost.calls)} per image",
        )
    if (certified := compared.proven) is not None:
        yield (
            "certified robust accuracy",
            f"{at_least(certified.accuracy)}, certified by {certified.method}",
        )


def published(context: ReportContext) -> Section | None:
    """Show published results beside ours, if there are any."""
    results = context.published
    ours = context.audit.robust_accuracy
    values = {
        "claimed": results.claimed,
        "static model": results.static,
        "AutoAttack": results.autoattack,
    }
    lines = [
        (name, percent(accuracy), signed(accuracy - ours))
        for name, accuracy in values.items()
        if accuracy is not None
    ]
    if not lines:
        return None
    source = [muted(f"Source: {results.source}.")] if results.source else []
    head = ("result", "published robust accuracy", "above ours (points)")
    return Section("Published results", (table(head, lines), *source))
