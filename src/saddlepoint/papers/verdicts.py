"""Verdicts about claims: rules that need the numbers of a record alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from saddlepoint.papers.claims import CellReference, Claim
from saddlepoint.papers.comparison import Measured
from saddlepoint.papers.flags import FEWEST, image_count, least_clean, too_few
from saddlepoint.papers.result import Result, Row, Table

_REDUCED = "reduced hyper-parameters"  # a label of tables
_NOT_REDUCED = "none"


class Verdict(StrEnum):
    """What a record says about a claim; the value is the text."""

    CONFIRMED = "confirmed"
    COMPATIBLE = "compatible"
    NOT_CONFIRMED = "not confirmed"
    CONTRADICTED = "contradicted"
    PREMISE_NOT_MET = "premise not met"
    NOT_TESTABLE = "not testable"


@dataclass(frozen=True)
class Decided:
    """A claim with what a record says about it."""

    claim: Claim
    effect: Measured
    verdict: Verdict
    reason: str  # of a verdict that does not follow from the effect; empty: it does
    images: tuple[int, ...]  # different numbers of images of its cells; empty: not known
    flags: tuple[str, ...]  # reasons to doubt it
    quotes: tuple[str, ...]  # budgets and other facts in the words of the record
    published: float | None  # the paper's number for the effect
    cases: int = 0  # of which the effect counts exceptions; 0: it is no count


def decide(claim: Claim, result: Result) -> Decided:
    """Decide a claim.

    Args:
        claim: the claim.
        result: the record that it names.

    Returns:
        The claim with its effect and its verdict. From the 95 % interval of the effect:

        - a sign: confirmed if the interval is above zero, contradicted if it is below zero, not
          confirmed if it contains zero;
        - no effect: compatible if it contains zero, contradicted otherwise;
        - a published level: compatible if it contains it; if the level may be lower, confirmed if
          the interval is below it; contradicted otherwise;
        - a count of exceptions: compatible if there is none, not confirmed otherwise.

        If the premise of the claim is not met, or if both of its strategies are the same, this is
        the verdict.

    Raises:
        ValueError: if the record does not have a cell or a note that the claim names.
    """
    effect = _effect(claim, result)
    published = _published(claim, result)
    verdict, reason = _with_reason(claim, result, _verdict(claim, effect, published))
    counted = [_images(claim, ref, result) for ref in claim.references]
    images = tuple(dict.fromkeys(n for n in counted if n))
    cases = 0
    if claim.expected == "never" and claim.second is not None:
        cases = round(claim.second.find(result)[2].mean)
    return Decided(
        claim,
        effect,
        verdict,
        reason,
        images,
        tuple(_flags(claim, result, effect, images)),
        tuple(_quotes(claim, result)),
        published,
        cases,
    )


def _effect(claim: Claim, result: Result) -> Measured:
    if claim.expected == "never":
        exceptions = claim.first.find(result)[2].mean
        return Measured(exceptions, exceptions, exceptions)
    effect = _measured(claim, claim.first, result)
    if claim.second is not None:
        effect = effect.minus(_measured(claim, claim.second, result))
    if claim.expected == "negative":
        return Measured(0 - effect.value, 0 - effect.high, 0 - effect.low)  # no -0.0
    return effect


def _measured(claim: Claim, reference: CellReference, result: Result) -> Measured:
    """The number of a cell; without its own interval, with Wilson's over its images."""
    cell = reference.find(result)[2]
    images = _images(claim, reference, result)
    if cell.interval or not images:
        return Measured.of(cell)
    alone = Table("", ("",), ("",), (Row(("",), (cell,)),), images)
    return Measured.accuracy(alone, ("",), "")


def _images(claim: Claim, reference: CellReference, result: Result) -> int:
    table, row, _ = reference.find(result)
    return round(claim.share * image_count(table, row))


def _published(claim: Claim, result: Result) -> float | None:
    """The paper's effect, positive in the direction of the claim; None if it reports none."""
    if claim.published is not None:
        return claim.published
    papers = [ref.find(result)[2].paper for ref in claim.references]
    known = [one for one in papers if one is not None]
    if not claim.comparable or len(known) < len(papers):
        return None
    effect = known[0] - sum(known[1:])
    return 0 - effect if claim.expected == "negative" else effect


def _verdict(claim: Claim, effect: Measured, published: float | None) -> Verdict:
    if claim.expected == "never":
        return Verdict.NOT_CONFIRMED if effect.value else Verdict.COMPATIBLE
    if claim.expected == "zero":
        return Verdict.COMPATIBLE if _contains(effect, 0) else Verdict.CONTRADICTED
    if claim.is_level:
        assert published is not None, f"{claim.record} has no published number for {claim.claim}"
        if _contains(effect, published):
            return Verdict.COMPATIBLE
        below = claim.expected == "at most" and effect.high < published
        return Verdict.CONFIRMED if below else Verdict.CONTRADICTED
    if effect.low > 0:
        return Verdict.CONFIRMED
    return Verdict.CONTRADICTED if effect.high < 0 else Verdict.NOT_CONFIRMED


def _contains(effect: Measured, value: float) -> bool:
    return effect.low <= value <= effect.high


def _with_reason(claim: Claim, result: Result, verdict: Verdict) -> tuple[Verdict, str]:
    """The verdict that holds whatever the effect is, with its reason; else the given one."""
    if claim.strategies and (same := claim.strategies.reason(result)):
        return Verdict.NOT_TESTABLE, same
    if claim.premise and (unmet := claim.premise.reason(result)):
        return Verdict.PREMISE_NOT_MET, unmet
    return verdict, ""


def _flags(
    claim: Claim, result: Result, effect: Measured, images: tuple[int, ...]
) -> Iterator[str]:
    if images and too_few(min(images)):
        yield f"fewer than {FEWEST} images"
    if any(ref.find(result)[2].masked for ref in claim.references):
        yield "masked gradients"
    if claim.base is not None:
        clean = claim.base.find(result)[2].mean
        if clean < least_clean(claim.data):
            yield f"base network {clean:.1f} % clean"
    if effect.low == effect.high == 0 and claim.expected != "never":
        yield "equal on every image"


def _quotes(claim: Claim, result: Result) -> Iterator[str]:
    """Reduced hyper-parameters of the row, and what the record's notes say about budgets."""
    table, row, _ = claim.first.find(result)
    if _REDUCED in table.labels:
        reduced = row.labels[table.labels.index(_REDUCED)]
        if reduced != _NOT_REDUCED:
            yield f"reduced: {reduced}"
    for pattern in claim.quotes:
        found = [match[0] for note in result.notes if (match := re.search(pattern, note))]
        if not found:
            raise ValueError(
                f"no note of {claim.record} matches {pattern!r}, which the claim {claim.claim!r} "
                "quotes. Change the pattern to the words of the record."
            )
        yield found[0]
