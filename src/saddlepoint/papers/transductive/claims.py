"""The claims of the paper that our records decide."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

from saddlepoint.papers.claims import CellReference, Claim
from saddlepoint.papers.transductive import published

_ROBUST = "cifar10/triplewins_rdi_resnet38"
_BASES = ("mnist madry", "mnist trades", "mnist half")
# Columns of Table 2 as published, after clean accuracies.
_TABLE_2 = ("static, AA", "DENT-AA", "AA", "PGD", "FPA", "GMSA-AVG", "GMSA-MIN")
_RMC_BUDGET = (r"PGD with \d+ steps?; FPA and GMSA with \d+ rounds per image",)
_DANN_BUDGET = (r"rounds \d+( of \d+)?, PGD steps \d+( of \d+)?",)
_TADV_BUDGET = (r"sources \d+( of \d+)?", r"PGD steps \d+( of \d+)?")
_DENT_BUDGET = (r"PGD: \d+ runs? of \d+ steps?",)
_AUTOATTACK = r"(in place of )?AutoAttack[^;]* quer(y|ies)"
_STATIC_BUDGET = (*_DENT_BUDGET, rf"^on static networks: .*{_AUTOATTACK}")
_BRIGHTER = "(c) brighter images"
_CLEAN = "(a) clean images"
_REJECTED = "threshold 1/2: normal rejected"
_NORMAL = 0.5  # of a test batch of Figure 1


def _lower(
    defense: str,
    record: str,
    row: tuple[str, ...],
    pair: tuple[str, str],
    *,
    clean: str,
    budget: tuple[str, ...],
) -> Claim:
    """A claim that the second attack of a pair finds a lower accuracy than the first."""
    weaker, stronger = pair
    source = record.removeprefix("table-")
    return Claim(
        f"{defense}: {stronger} finds a lower accuracy than {weaker} (Table {source}).",
        f"transductive/{record}",
        CellReference(0, row, weaker),
        ", ".join(row[1:]) or "trained here",
        row[0],
        second=CellReference(0, row, stronger),
        base=CellReference(0, row, clean),
        quotes=(*budget, _AUTOATTACK) if weaker == "AA" else budget,
    )


def _rmc(base: str, weaker: str) -> Claim:
    row = ("mnist", base)
    pair = (weaker, "GMSA-MIN")
    return _lower("RMC", "table-1", row, pair, clean="static, clean", budget=_RMC_BUDGET)


def _dann(weaker: str, stronger: str) -> Claim:
    pair = (weaker, stronger)
    budget = _DANN_BUDGET
    return _lower("DANN", "table-3", ("mnist",), pair, clean="Standard, clean", budget=budget)


def _tadv(weaker: str, stronger: str) -> Claim:
    pair = (weaker, stronger)
    budget = _TADV_BUDGET
    return _lower("TADV", "table-4", ("mnist",), pair, clean="Madry, clean", budget=budget)


def _dent(base: str, text: str, first: str, second: str) -> Claim:
    """A claim about two attacks on DENT; the paper's number is the mean over its bases."""
    columns = [2 + _TABLE_2.index(name) for name in (first, second)]
    rows = published.TABLE_2.values()
    return Claim(
        text,
        "transductive/table-2",
        CellReference(0, (base,), first),
        f"{base.removeprefix('mnist ')}, trained here",
        "mnist",
        second=CellReference(0, (base,), second),
        base=CellReference(0, (base,), "static, clean"),
        published=fmean(row[columns[0]] - row[columns[1]] for row in rows),
        quotes=_DENT_BUDGET,
    )


def _about_dent(base: str) -> tuple[Claim, ...]:
    """Table 2: AutoAttack overestimates DENT, and simulating DENT adds little to PGD."""
    overestimates = "overestimates DENT: PGD on the static network finds a lower accuracy (Table 2)"
    same = "Against DENT, {} finds the accuracy that PGD on the static network finds (Table 2)."
    static = "Under points of PGD, DENT has the accuracy of its static network under AA (Table 2)."
    return (
        replace(
            _dent(base, f"AutoAttack on DENT as a module {overestimates}.", "DENT-AA", "PGD"),
            quotes=(*_DENT_BUDGET, r"DENT-AA: [^;]* quer(y|ies)"),
        ),
        replace(
            _dent(base, f"AutoAttack on the static network {overestimates}.", "AA", "PGD"),
            quotes=_STATIC_BUDGET,
        ),
        replace(_dent(base, static, "PGD", "static, AA"), expected="zero", quotes=_STATIC_BUDGET),
        *(
            replace(_dent(base, same.format(name), "PGD", name), expected="zero")
            for name in ("FPA", "GMSA-MIN")
        ),
    )


def _under_pgd(text: str, table: int) -> Claim:
    """A claim about DENT and its static network under the same points."""
    return Claim(
        text,
        f"transductive/table-{table}-real",
        CellReference(0, (_ROBUST,), "DENT minus static, both under PGD's points"),
        f"{_ROBUST}, last exit, Linf 8/255",
        "cifar10",
        base=CellReference(0, (_ROBUST,), "static, clean"),
        quotes=(r"one run of \d+ steps on the margin",),
    )


def _rejects_brighter(discriminator: str) -> Claim:
    return Claim(
        "URejectron rejects brighter images more often than clean images, at a threshold of 1/2 "
        "(Figure 1(c): it rejects all of them).",
        "transductive/figure-1",
        CellReference(1, (discriminator, _BRIGHTER), _REJECTED),
        f"{discriminator}, trained here",
        "gtsrb10",
        second=CellReference(1, (discriminator, _CLEAN), _REJECTED),
        share=_NORMAL,
    )


CLAIMS = (
    replace(
        _under_pgd(
            "Under the same points of PGD, DENT has the accuracy of its static network (Table 2).",
            2,
        ),
        expected="zero",
    ),
    replace(
        _under_pgd(
            "In batches sorted by label, DENT is less robust than its static network under the "
            "same points of PGD (Table 5).",
            5,
        ),
        expected="negative",
    ),
    Claim(
        "Against DENT, FPA finds the accuracy that PGD on the static network finds (Table 2).",
        "transductive/table-2-real",
        CellReference(0, (_ROBUST,), "DENT, PGD's points"),
        f"{_ROBUST}, last exit, Linf 8/255",
        "cifar10",
        second=CellReference(0, (_ROBUST,), "DENT, FPA"),
        expected="zero",
        base=CellReference(0, (_ROBUST,), "static, clean"),
        quotes=(r"one run of \d+ steps on the margin, FPA in \d+ rounds",),
    ),
    *(claim for base in _BASES for claim in _about_dent(base)),
    _rmc("Standard", "PGD"),
    _rmc("Standard", "FPA"),
    _rmc("Madry", "PGD"),
    _rmc("Madry", "FPA"),
    Claim(
        "Around Madry's network RMC is less robust to GMSA-MIN than the static network is to "
        "AutoAttack (Table 1).",
        "transductive/table-1",
        CellReference(0, ("mnist", "Madry"), "static, AA"),
        "Madry",
        "mnist",
        second=CellReference(0, ("mnist", "Madry"), "GMSA-MIN"),
        base=CellReference(0, ("mnist", "Madry"), "static, clean"),
        quotes=(*_RMC_BUDGET, _AUTOATTACK),
    ),
    _dann("AA", "GMSA-MIN"),
    _dann("PGD", "GMSA-MIN"),
    _dann("FPA", "GMSA-MIN"),
    _dann("FPA", "GMSA-AVG"),
    _tadv("PGD", "GMSA-AVG"),
    Claim(
        "TADV is more robust to GMSA-AVG than Madry's network is to AutoAttack (Table 4).",
        "transductive/table-4",
        CellReference(0, ("mnist",), "GMSA-AVG"),
        "trained here",
        "mnist",
        second=CellReference(0, ("mnist",), "Madry, AA"),
        base=CellReference(0, ("mnist",), "Madry, clean"),
        quotes=(*_TADV_BUDGET, _AUTOATTACK),
    ),
    _rejects_brighter("ResNet (the paper's)"),
    _rejects_brighter("high-pass (selected by its result)"),
)
