"""Several targets on the same images, compared image by image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from itertools import combinations

from saddlepoint.audits.result import Audit
from saddlepoint.audits.statistics import mcnemar
from saddlepoint.phrases import at_most, count, percent


@dataclass(frozen=True)
class PairedTest:
    """Two targets, compared by McNemar's exact test on the images of which only one is robust."""

    first: str
    second: str
    only_first: int  # images on which only the first one is robust
    only_second: int
    p: float  # probability of a difference this large by chance
    adjusted: float  # p, multiplied for the number of pairs (Holm 1979)


@dataclass(frozen=True, repr=False)
class Comparison:
    """Audits of several targets on the same images, and a paired test of every two of them."""

    audits: Mapping[str, Audit]
    tests: tuple[PairedTest, ...]

    @classmethod
    def of(cls, audits: Mapping[str, Audit]) -> Comparison:
        """Compare audits. A randomized target counts as robust if half of its draws are correct."""
        pairs = list(combinations(audits, 2))
        results = [
            mcnemar(audits[first].correct, audits[second].correct) for first, second in pairs
        ]
        adjusted = _holm([result.p for result in results])
        tests = [
            PairedTest(first, second, result.only_first, result.only_second, result.p, p)
            for (first, second), result, p in zip(pairs, results, adjusted, strict=True)
        ]
        return cls(dict(audits), tuple(tests))

    def __repr__(self) -> str:
        images = count(next(iter(self.audits.values())).n, "image")
        targets = ", ".join(
            f"{name} {at_most(audit.robust_accuracy)} ({audit.verdict})"
            for name, audit in self.audits.items()
        )
        return f"<Comparison on {images}: {targets}>"

    def __str__(self) -> str:
        lines = [
            f"{name}: clean {percent(audit.clean_accuracy)}, robust "
            f"{at_most(audit.robust_accuracy)} ({audit.interval}), {audit.verdict}"
            f"{', attacked without gradients' if _without_gradients(audit) else ''}"
            for name, audit in self.audits.items()
        ]
        lines += [
            f"{test.first} against {test.second}: only the first is robust on "
            f"{count(test.only_first, 'image')}, only the second on {test.only_second}, "
            f"p = {test.adjusted:.2g}"
            for test in self.tests
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return "<br>".join(escape(line) for line in str(self).splitlines())


def _without_gradients(audit: Audit) -> bool:
    """Whether no attack computed a gradient, as on a callable that is no nn.Module."""
    return bool(audit.rows) and not any(row.backward for row in audit.rows)


def _holm(values: list[float]) -> list[float]:
    """p-values that hold for all tests together: p_(k) (m - k), made monotone, at most 1."""
    order = sorted(range(len(values)), key=values.__getitem__)
    adjusted = [0.0] * len(values)
    largest = 0.0
    for rank, k in enumerate(order):
        largest = max(largest, min(1.0, values[k] * (len(values) - rank)))
        adjusted[k] = largest
    return adjusted
