"""An audit as one HTML page that needs no network: the verdict in words, what speaks against it, then the numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from saddlepoint.auditing.result import Audit, Level, Row, Symptom
from saddlepoint.report.figures import Bar, bars
from saddlepoint.report.gallery import gallery, named
from saddlepoint.report.markup import Markup, tag
from saddlepoint.report.recipe import check_again, run_again, sha256
from saddlepoint.report.style import CSS

_LEVELS: tuple[Level, ...] = ("serious", "warning", "note")
_SHAPES: dict[Level, str] = {"serious": "■", "warning": "▲", "note": "●"}  # a level is never told by colour alone
_CLASSES_SHOWN = 20
# The page runs nothing and fetches nothing, whatever a name in it says.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def write(audit: Audit, path: Path) -> Path:
    """Write the page to the file `path` and return it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("<!doctype html>\n" + page(audit), encoding="utf-8")
    return path


def page(audit: Audit) -> Markup:
    """The whole document."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{audit.target}: {audit.verdict}"),
        tag("style", Markup(CSS)),
    )
    body = tag(
        "main",
        tag("p", "saddlepoint audit", class_="brand"),
        tag("h1", audit.target),
        tag("p", audit.threat, class_="quiet"),
        _verdict(audit),
        _section("What speaks against the number", _symptoms(audit.symptoms)),
        _section("The number", _numbers(audit)),
        _section("What each attack took", _attacks(audit)),
        _section("Which classes fall", _classes(audit)),
        _section("Examples", gallery(audit)),
        _section("What was run", [tag("div", _facts(audit), class_="card scroll")]),
        _section("Run it again", run_again(audit)),
        _section("Check it without this library", check_again(audit)),
        tag("footer", tag("p", f"Written by saddlepoint {audit.versions.get('saddlepoint', '')}.", class_="quiet")),
    )  # fmt: skip
    return tag("html", head, tag("body", body), lang="en")


def _section(title: str, parts: Iterator[Markup] | Sequence[Markup]) -> Markup:
    return tag("section", tag("h2", title), *parts)


def _quiet(text: str) -> Markup:
    return tag("p", text, class_="quiet")


def _verdict(audit: Audit) -> Markup:
    level: Level = "note" if audit.verdict == "upper bound" else "serious"
    told = audit.summary().removeprefix("cannot be told: ")  # the label says so
    return tag(
        "div",
        tag("span", f"Verdict: {audit.verdict}", class_="label"),
        tag("p", told[:1].upper() + told[1:]),
        class_=f"verdict {level}",
    )


def _symptoms(symptoms: Sequence[Symptom]) -> Iterator[Markup]:
    if not symptoms:
        yield _quiet(
            "No symptom was met: neither the checks before the attacks nor what the attacks gave away raises a doubt. They cannot "
            "rule out an attack that was not tried."
        )
        return
    ranked = sorted(symptoms, key=lambda symptom: _LEVELS.index(symptom.level))
    items = (
        tag(
            "li",
            tag("span", tag("span", f"{_SHAPES[s.level]} ", aria_hidden="true"), f"{s.level}: {s.name}", class_="label"),
            tag("p", s.message[:1].upper() + s.message[1:]),
            class_=s.level,
        )
        for s in ranked
    )
    yield tag("ul", *items, class_="symptoms")


def _numbers(audit: Audit) -> Iterator[Markup]:
    cards = (
        ("clean accuracy", percent(audit.clean_accuracy), f"of {audit.n} images, before any attack"),
        ("robust accuracy, at most", percent(audit.robust_accuracy), "after every attack, judged afresh"),
        (f"{100 * audit.interval.level:.0f} % interval", f"{100 * audit.interval.low:.1f} – {100 * audit.interval.high:.1f} %",
         "covers which images were drawn, not the strength of the attacks"),
    )  # fmt: skip
    drawn = (
        tag("div", tag("span", name), tag("b", value), tag("span", text, class_="quiet"), class_="card")
        for name, value, text in cards
    )
    yield tag("div", *drawn, class_="numbers")


def _attacks(audit: Audit) -> Iterator[Markup]:
    steps = [Bar("clean", audit.clean_accuracy, 0.0, percent(audit.clean_accuracy))]
    steps += [Bar(row.name, row.running, max(row.gain, 0.0), percent(row.running), alone=row.robust_accuracy) for row in audit.rows]
    final = Bar("judged afresh", audit.robust_accuracy, 0.0, percent(audit.robust_accuracy), interval=audit.interval[:2])
    figure = bars([*steps, final], title="Accuracy that is left after each attack")
    yield tag("div", _key("accuracy left", "taken by this attack", "left by this attack alone"), figure, class_="card")
    yield _quiet("Worst case over the attacks so far, from top to bottom. Passes are per image of the whole set.")
    yield tag("div", _table(audit.rows), class_="card scroll")


def _key(kept: str, lost: str, alone: str) -> Markup:
    swatches = ((kept, "kept"), (lost, "lost"), (alone, "alone"))
    return tag("div", *(tag("span", text, class_=f"swatch-{colour}") for text, colour in swatches), class_="key quiet")


def _table(rows: Sequence[Row]) -> Markup:
    head = (
        "attack",
        "accuracy against it",
        "worst case so far",
        "taken",
        "images attacked",
        "forward passes",
        "backward passes",
        "seconds",
    )
    body = (
        (percent(row.robust_accuracy), percent(row.running), f"{100 * row.gain:.1f}", str(row.attacked), f"{row.forward:.1f}", f"{row.backward:.1f}",
         f"{row.seconds:.1f}")
        for row in rows
    )  # fmt: skip
    lines = (
        tag("tr", tag("th", row.name, scope="row"), *(tag("td", cell) for cell in cells))
        for row, cells in zip(rows, body, strict=True)
    )
    return tag("table", tag("thead", tag("tr", *(tag("th", cell, scope="col") for cell in head))), tag("tbody", *lines))


def _classes(audit: Audit) -> Iterator[Markup]:
    y, answered = audit.y.cpu(), audit.answered.cpu()
    rows = []
    for label in sorted(set(y.tolist())):
        here = y == label
        kept = float(audit.correct.cpu()[here].double().mean())
        wrong = Counter(answered[here & (answered != y)].tolist()).most_common(1)
        mistaken = f" → {named(audit, int(wrong[0][0]))}" if wrong else ""
        rows.append((kept, Bar(f"{named(audit, label)}{mistaken}", kept, 0.0, f"{percent(kept)} of {int(here.sum())}")))
    weakest = [bar for _, bar in sorted(rows, key=lambda row: row[0])]
    hidden = len(weakest) - _CLASSES_SHOWN
    more = f" {hidden} stronger classes are left out." if hidden > 0 else ""
    yield _quiet(f"Robust accuracy by true class, weakest first; the arrow leads to the most frequent wrong answer.{more}")
    yield tag("div", bars(weakest[:_CLASSES_SHOWN], title="Robust accuracy by true class"), class_="card")


def _facts(audit: Audit) -> Markup:
    change = (audit.worst_points - audit.x).flatten(1).double()
    largest, longest, total = (float(size.amax()) for size in (change.abs(), change.norm(dim=1), change.abs().sum(1)))
    low, high = (float(bound) for bound in audit.worst_points.aminmax())
    facts = {
        "target": audit.target,
        "threat": audit.threat,
        "data": f"{audit.data or 'tensors given by the caller'}, {audit.n} inputs of shape {list(audit.x.shape[1:])}",
        "budget, seed": f"{audit.budget}, {audit.seed}",
        "largest change": f"{largest:.6g} of one value, {longest:.6g} in Euclidean length, {total:.6g} in the sum of all values",
        "range of the points": f"{low:.6g} to {high:.6g}",
        "time": f"{audit.seconds:.1f} seconds",
        "versions": ", ".join(f"{name} {number}" for name, number in audit.versions.items()),
        "SHA-256 of x": sha256(audit.x),
        "SHA-256 of points": sha256(audit.worst_points),
    }
    rows = (tag("tr", tag("th", name, scope="row"), tag("td", value)) for name, value in facts.items())
    return tag("table", tag("tbody", *rows), class_="facts")


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"
