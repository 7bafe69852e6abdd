"""Renders typed numbers for sentences, so that every message is right at its edges.

Rules that hold everywhere:

- A noun agrees with its count: `1 image`, `0 images`, `3 branches`.
- `0 %` and `100 %` are exact. A share that only rounds to them is `less than 0.1 %` or
  `more than 99.9 %`.
- A fractional count is a mean over the draws of a randomized defense, and says so.
- Counts, shares and differences that no measurement can have, such as NaN, are rejected: they are
  errors of the caller. Measured values may be infinite or NaN, and `number` shows that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

_EXACT = 1e-9  # of a share or a count: less is rounding error of a mean
_ROUNDING = 1e-6  # a value outside its range by less is a rounding error in single precision
# Plurals of nouns that other rules get wrong.
_IRREGULAR = {"epoch": "epochs", "index": "indices", "matrix": "matrices"}


def count(n: float, noun: str, plural: str = "") -> str:
    """A number of things: `1 image`, `3 branches`, `12,000 queries`.

    Args:
        n: a whole number, at least 0.
        noun: the noun for one, possibly with adjectives before it.
        plural: the noun for several; default: by the rules of English.

    Raises:
        ValueError: `n` is negative, fractional or NaN.
    """
    return f"{whole(n)} {noun_for(n, noun, plural)}"


def count_of(n: float, total: float, noun: str, plural: str = "") -> str:
    """A part of a number of things: `3 of 64 images`, `none of 64 images`, `1 of 1 image`.

    A fractional part is a mean over draws: `0.4 of 40 images (mean over draws)`.

    Args:
        n: how many, from 0 to `total`; may be fractional.
        total: of how many, a whole number.
        noun: the noun for one.
        plural: the noun for several; default: by the rules of English.

    Raises:
        ValueError: `n` is not in [0, total], or `total` is no count.
    """
    _check(-_ROUNDING <= n <= total + _ROUNDING, f"a count from 0 to {total}", n)
    things = f"of {count(total, noun, plural)}"
    if not _is_whole(n):
        almost_all = f"{n:.1f}" == f"{total:.1f}"
        shown = f"more than {total - 0.1:.1f}" if almost_all else _fraction(n)
        return f"{shown} {things} (mean over draws)"
    return f"{whole(n) if round(n) else 'none'} {things}"


def mean_count(n: float, noun: str, plural: str = "") -> str:
    """A number of things that is fractional if it is a mean: `on average 0.4 images`.

    Args:
        n: how many, at least 0.
        noun: the noun for one.
        plural: the noun for several; default: by the rules of English.

    Raises:
        ValueError: `n` is negative or NaN.
    """
    _check(n >= -_ROUNDING, "a count of at least 0", n)
    if _is_whole(n):
        return count(n, noun, plural)
    return f"on average {_fraction(n)} {noun_for(2, noun, plural)}"


def whole(n: float) -> str:
    """A count without its noun: `999`, `12,000`. Four digits need no separator.

    Raises:
        ValueError: `n` is negative, fractional or NaN.
    """
    rounded = round(n) if _is_whole(n) else -1
    _check(rounded >= 0, "a count", n)
    return f"{rounded}" if rounded < 10_000 else f"{rounded:,}"


def noun_for(n: float, noun: str, plural: str = "") -> str:
    """The noun that agrees with a count: `image` for 1, `images` for any other.

    Args:
        n: how many.
        noun: the noun for one.
        plural: the noun for several; default: by the rules of English.
    """
    return noun if abs(n - 1) < _EXACT else plural or _plural(noun)


def agree(n: float, singular: str, plural: str) -> str:
    """The verb or pronoun that agrees with a count: `agree(1, "is", "are")` is `is`."""
    return singular if abs(n - 1) < _EXACT else plural


def how_often(n: float) -> str:
    """How often something happens: `never`, `once`, `3 times`, `on average 2.5 times`.

    Raises:
        ValueError: `n` is negative or NaN.
    """
    if abs(n) < _EXACT:
        return "never"
    return "once" if abs(n - 1) < _EXACT else mean_count(n, "time")


def times(ratio: float) -> str:
    """How many times as large: `0.04 times`, `1.0 times`, `12 times`.

    Two significant digits, and all digits of larger numbers.

    Raises:
        ValueError: `ratio` is negative, infinite or NaN.
    """
    _check(ratio >= 0 and math.isfinite(ratio), "a finite ratio of at least 0", ratio)
    if 0 < ratio < 0.01:
        return "less than 0.01 times"
    rounded = float(f"{ratio:.2g}")
    if rounded < 1:
        return f"{rounded:g} times"
    return f"{rounded:.1f} times" if rounded < 10 else f"{ratio:,.0f} times"


def percent(share: float, decimals: int = 1) -> str:
    """A share as a percentage in a sentence: `45.3 %`, `0 %`, `less than 0.1 %`, `100 %`.

    Args:
        share: in [0, 1].
        decimals: digits after the point; default: 1.

    Raises:
        ValueError: `share` is not in [0, 1].
    """
    return _percent(share, decimals, "less than ", "more than ")


def between_0_and_1(value: float) -> str:
    """What to write instead of a share outside of [0, 1], such as a percentage.

    Args:
        value: the number that was found.
    """
    example = f": for {value:g} % write {value / 100:g}" if 10 <= value <= 100 else ""
    return f"expected a share between 0 and 1{example}. Got {value:g}."


def percent_cell(share: float, decimals: int = 1) -> str:
    """A share as a percentage in a table or figure: `45.3 %`, `0 %`, `< 0.1 %`, `> 99.9 %`.

    Args:
        share: in [0, 1].
        decimals: digits after the point; default: 1.

    Raises:
        ValueError: `share` is not in [0, 1].
    """
    return _percent(share, decimals, "< ", "> ")


def percent_range(low: float, high: float, separator: str = " to ") -> str:
    """An interval of shares: `70.1 to 81.5 %`. Ends that round to 0 or 100 are so written.

    Args:
        low: the lower end, in [0, 1].
        high: the upper end, in [0, 1].
        separator: between the ends; default: " to ".

    Raises:
        ValueError: an end is not in [0, 1].
    """
    ends = [f"{100 * _share(end):.1f}" for end in (low, high)]
    shown = [{"0.0": "0", "100.0": "100"}.get(end, end) for end in ends]
    return f"{shown[0]}{separator}{shown[1]} %"


def at_most(share: float) -> str:
    """An upper bound of a share: `≤ 79.0 %`. A positive one is never `≤ 0 %`.

    Raises:
        ValueError: `share` is not in [0, 1].
    """
    if _rounds_to(share, 1.0):
        return "< 100 %"
    return "≤ 0.1 %" if _rounds_to(share, 0.0) else f"≤ {percent(share)}"


def at_least(share: float) -> str:
    """A lower bound of a share: `≥ 20.0 %`. One below 1 is never `≥ 100 %`.

    Raises:
        ValueError: `share` is not in [0, 1].
    """
    if _rounds_to(share, 0.0):
        return "> 0 %"
    return "≥ 99.9 %" if _rounds_to(share, 1.0) else f"≥ {percent(share)}"


def relative(ratio: float, decimals: int = 0) -> str:
    """Any measured ratio as a percentage: `250 %`, `-12 %`, `0 %`, `about 0 %`.

    Args:
        ratio: any number, also infinite or NaN.
        decimals: digits after the point; default: 0.
    """
    if not math.isfinite(ratio):
        return f"{number(ratio)} %"
    shown = f"{100 * ratio:.{decimals}f}"
    if float(shown):
        return f"{shown} %"
    return "about 0 %" if ratio else "0 %"


def points(difference: float, decimals: int = 1) -> str:
    """A difference of two percentages: `3.1 points`, `0 points`, `less than 0.1 points`.

    Args:
        difference: of two shares, in [0, 1].
        decimals: digits after the point; default: 1.

    Raises:
        ValueError: `difference` is not in [0, 1]. A negative one needs another sentence:
            `points_more` or `signed_points`.
    """
    if _rounds_to(difference, 0.0, decimals):
        return f"less than {_least(decimals)} points"
    shown = _share(difference)
    return f"{100 * shown:.{decimals}f} points" if shown else "0 points"


def points_more(difference: float) -> str:
    """How much larger one percentage is, before `than`: `3.1 points more`, or `no more`.

    Raises:
        ValueError: `difference` is not in [-1, 1].
    """
    _check(-1 - _ROUNDING <= difference <= 1 + _ROUNDING, "a difference in [-1, 1]", difference)
    return f"{points(difference)} more" if difference > _EXACT else "no more"


def signed_points(difference: float) -> str:
    """A change of a percentage: `+3.1 points`, `-0.2 points`, `0 points`.

    Raises:
        ValueError: `difference` is not in [-1, 1].
    """
    return f"{signed(difference)} points"


def signed(difference: float) -> str:
    """A change of a percentage in points, without the word: `+3.1`, `-0.2`, `0`, `about 0`.

    Raises:
        ValueError: `difference` is not in [-1, 1].
    """
    _check(-1 - _ROUNDING <= difference <= 1 + _ROUNDING, "a difference in [-1, 1]", difference)
    if abs(difference) < _EXACT:
        return "0"
    shown = f"{100 * difference:+.1f}"
    return "about 0" if shown in ("+0.0", "-0.0") else shown


def radius(value: float) -> str:
    """A radius: `0.5` if three digits are exact, else `8/255` if it is such a fraction.

    Any other radius has three significant digits.

    Raises:
        ValueError: `value` is negative, infinite or NaN.
    """
    _check(value >= 0 and math.isfinite(value), "a finite radius of at least 0", value)
    short = f"{value:.3g}"
    if math.isclose(float(short), value, rel_tol=1e-9):
        return short
    if value < 1 and math.isclose(round(255 * value), 255 * value, rel_tol=1e-6):
        return f"{round(255 * value)}/255"
    return short


def number(value: float, digits: int = 2) -> str:
    """A measured value with a few significant digits; it may be infinite or NaN.

    Args:
        value: any number.
        digits: significant digits; default: 2.
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "infinity" if value > 0 else "-infinity"
    return f"{value:.{digits}g}"


def cosine(value: float) -> str:
    """A cosine with two decimals, without a negative zero: `0.97`, `0.00`, `-0.31`."""
    shown = f"{value:.2f}"
    return "0.00" if shown == "-0.00" else shown.replace("nan", "NaN")


def names(items: Iterable[str], limit: int | None = None) -> str:
    """Different names in a list: `a`, `a and b`, `a, b and c`, `a, b and 3 others`.

    Args:
        items: the names; repeated ones are shown once.
        limit: the largest number of names that are shown; default: all.
    """
    shown = list(dict.fromkeys(str(item) for item in items))
    if limit is not None and len(shown) > limit:
        shown = [*shown[:limit], count(len(shown) - limit, "other")]
    if len(shown) < 2:
        return "".join(shown)
    return f"{', '.join(shown[:-1])} and {shown[-1]}"


def printable(text: str) -> str:
    """A text without control characters: records of others must not control the terminal."""
    return "".join(
        char if char in "\n\t" or char.isprintable() else f"\\x{ord(char):02x}" for char in text
    )


def most_passes(passes: int | None) -> str:
    """The largest number of passes of an attack; None if it is not known."""
    if passes is None:
        return "an unknown number of passes"
    return f"at most {count(passes, 'pass')}"


def _plural(noun: str) -> str:
    """The plural of the last word of a noun."""
    *adjectives, last = noun.split(" ")
    return " ".join([*adjectives, _plural_word(last)])


def _plural_word(word: str) -> str:
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if word.endswith(("s", "x", "z", "ch", "sh")):
        return f"{word}es"
    if word.endswith("y") and word[-2:-1] not in "aeiou":
        return f"{word[:-1]}ies"
    return f"{word}s"


def _percent(share: float, decimals: int, below: str, above: str) -> str:
    least = _least(decimals)
    if _rounds_to(share, 0.0, decimals):
        return f"{below}{least} %"
    if _rounds_to(share, 1.0, decimals):
        return f"{above}{100 - float(least):.{decimals}f} %"
    shown = _share(share)
    return f"{100 * shown:.0f} %" if shown in (0.0, 1.0) else f"{100 * shown:.{decimals}f} %"


def _least(decimals: int) -> str:
    """The smallest percentage that is shown as a number."""
    return f"{10.0**-decimals:.{decimals}f}"


def _rounds_to(share: float, end: float, decimals: int = 1) -> bool:
    """The share is shown as 0 or 100 % but is not exactly that."""
    shown = _share(share)
    return shown != end and f"{100 * shown:.{decimals}f}" == f"{100 * end:.{decimals}f}"


def _share(share: float) -> float:
    """The share without rounding errors at its ends.

    Raises:
        ValueError: it is not in [0, 1].
    """
    _check(-_ROUNDING <= share <= 1 + _ROUNDING, "a share in [0, 1]", share)
    if share < _EXACT:
        return 0.0
    return 1.0 if share > 1 - _EXACT else share


def _is_whole(n: float) -> bool:
    return math.isfinite(n) and abs(n - round(n)) < _ROUNDING


def _fraction(n: float) -> str:
    """A fractional count with one decimal; a positive one is never `0.0`."""
    shown = f"{n:.1f}"
    return "less than 0.1" if shown == "0.0" else shown


def _check(valid: bool, expected: str, value: float) -> None:
    if not valid:
        raise ValueError(f"expected {expected}, got {value}.")
