"""Each result beside the published numbers; computed from the tables of the result alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from saddlepoint.audits.statistics import wilson
from saddlepoint.papers.comparison import (
    Comparison,
    Measured,
    PaperComparison,
    base_networks,
    compare_effect,
    compare_level,
    compare_order,
    distant_bases,
    ordered_pairs,
    summary,
)
from saddlepoint.papers.result import Result, Row, Table
from saddlepoint.papers.transductive import published

MODEL_SPACE = ("FPA", "GMSA-AVG", "GMSA-MIN")
TRANSFERRED = ("AA", "PGD")
MODULE = "DENT-AA"
REJECTED = "threshold 1/2: normal rejected"  # of Figure 1


def table_1(result: Result) -> PaperComparison:
    """RMC under all attacks on one stream."""
    return _by_row(
        result,
        attacks=(*TRANSFERRED, *MODEL_SPACE),
        effects=(("PGD", "GMSA-AVG"), ("GMSA-AVG", "static, AA")),
        bases=("static, clean", "RMC, clean", "static, AA"),
    )


def table_3(result: Result) -> PaperComparison:
    """DANN under all attacks."""
    return _by_row(
        result,
        attacks=(*TRANSFERRED, *MODEL_SPACE),
        effects=(("PGD", "GMSA-MIN"), ("GMSA-MIN", "Madry, AA")),
        bases=("Standard, clean", "Madry, clean", "DANN, clean", "Standard, AA", "Madry, AA"),
    )


def table_4(result: Result) -> PaperComparison:
    """TADV under all attacks."""
    return _by_row(
        result,
        attacks=(*TRANSFERRED, *MODEL_SPACE),
        effects=(("GMSA-AVG", "Madry, AA"), ("PGD", "GMSA-AVG")),
        bases=("Madry, clean", "TADV, clean", "Madry, AA"),
    )


def table_6(result: Result) -> PaperComparison:
    """RMC under GMSA on several streams."""
    return _by_row(
        result,
        attacks=("GMSA-AVG", "GMSA-MIN"),
        effects=(("GMSA-AVG", "static, AA"),),
        bases=("static, clean", "RMC, clean", "static, AA"),
    )


def table_2(result: Result) -> PaperComparison:
    """DENT in naturally ordered batches, as means over base networks."""
    numbers = {name: row[2:] for name, row in published.TABLE_2.items()}
    return _dent(result, (MODULE, *TRANSFERRED, *MODEL_SPACE), numbers)


def table_5(result: Result) -> PaperComparison:
    """DENT in batches sorted by label, as means over base networks."""
    return _dent(result, (*TRANSFERRED, *MODEL_SPACE), published.TABLE_5)


def figure_1(result: Result) -> PaperComparison:
    """The classifier of URejectron, and what the text says about its curves.

    The curves are not numbers, but the text says of (c) that all brighter images are rejected.
    """
    classifier, rejections = result.tables[:2]
    bases = base_networks(classifier, classifier.columns)
    clean = {  # share of rejected clean images, by discriminator
        row.labels[:-1]: rejections.cell(row.labels, REJECTED).mean
        for row in rejections.rows
        if row.labels[-1].startswith("(a)")
    }
    findings = [
        f"{', '.join(row.labels)}: normal images rejected at the threshold 1/2: "
        f"{_compare_rejected(rejections, row, 100.0).text}; of clean images "
        f"{clean[row.labels[:-1]]:.1f} % are rejected."
        for row in rejections.rows
        if row.labels[-1].startswith("(c)")
    ]
    return PaperComparison(tuple(findings), tuple(distant_bases(bases)))


def _compare_rejected(table: Table, row: Row, published_share: float) -> Comparison:
    """Compare the rejected share of normal images, which are half of the batch."""
    share = table.cell(row.labels, REJECTED).mean
    interval = wilson(share / 100, table.n // 2)
    measured = Measured(share, 100 * interval.low, 100 * interval.high)
    return compare_level(measured, published_share)


def _by_row(
    result: Result,
    *,
    attacks: Sequence[str],
    effects: Sequence[tuple[str, str]],
    bases: Sequence[str],
) -> PaperComparison:
    """Compare every row of the first table that the paper has as well.

    Args:
        result: the result.
        attacks: columns whose accuracies and order are compared.
        effects: pairs of columns; the first minus the second is compared.
        bases: columns about base networks, and about the defense on clean images.
    """
    table = result.tables[0]
    rows = [row for row in table.rows if any(cell and cell.paper is not None for cell in row.cells)]
    findings = [finding for row in rows for finding in _row_findings(table, row, attacks, effects)]
    return PaperComparison(tuple(findings), tuple(distant_bases(base_networks(table, bases))))


def _row_findings(
    table: Table, row: Row, attacks: Sequence[str], effects: Sequence[tuple[str, str]]
) -> list[str]:
    name = " ".join(row.labels)
    papers = {
        column: cell.paper
        for column, cell in zip(table.columns, row.cells, strict=True)
        if cell is not None and cell.paper is not None
    }
    measured = {column: Measured.accuracy(table, row.labels, column) for column in papers}
    levels = {attack: compare_level(measured[attack], papers[attack]) for attack in attacks}
    differences = {
        f"{first} minus {second}": compare_effect(
            measured[first].minus(measured[second]), papers[first] - papers[second]
        )
        for first, second in effects
    }
    order = _order(measured, {attack: papers[attack] for attack in attacks})
    return _sentences(name, differences, order, levels)


def _dent(
    result: Result, attacks: Sequence[str], papers: Mapping[str, Sequence[float]]
) -> PaperComparison:
    """Compare mean gains over the static network, because the base networks are others.

    Args:
        result: the result; the first table has the accuracies.
        attacks: columns that the paper has as well, in its order.
        papers: the paper's accuracies by base network: static AA first, then one per attack.
    """
    table = result.tables[0]
    columns = ("static, AA", *attacks)
    means = {column: _mean_over_bases(table, column) for column in columns}
    published_means = {
        column: fmean(row[k] for row in papers.values()) for k, column in enumerate(columns)
    }
    static = published_means.pop("static, AA")
    gains = {
        f"DENT under {attack} minus the static network under AA": compare_effect(
            means[attack].minus(means["static, AA"]), published_means[attack] - static
        )
        for attack in attacks
    }
    order = _order(means, published_means)
    bases = ", ".join(row.labels[0] for row in table.rows)
    warning = (
        f"The base networks ({bases}) are not the paper's, which are seven RobustBench networks "
        "for CIFAR-10. Only means of gains, and the order of attacks, are compared."
    )
    return PaperComparison(tuple(_sentences("mean over bases", gains, order, {})), (warning,))


def _mean_over_bases(table: Table, column: str) -> Measured:
    """The mean of a column; the interval is the mean of the intervals, as on the same images."""
    cells = [Measured.accuracy(table, row.labels, column) for row in table.rows]
    return Measured(*(fmean(values) for values in zip(*cells, strict=True)))


def _order(measured: Mapping[str, Measured], papers: Mapping[str, float]) -> dict[str, Comparison]:
    if not ordered_pairs(papers):
        return {}
    return {"order of the attacks": compare_order(measured, papers)}


def _sentences(
    name: str,
    differences: Mapping[str, Comparison],
    order: Mapping[str, Comparison],
    levels: Mapping[str, Comparison],
) -> list[str]:
    """One sentence per effect, one about the order, one about all accuracies, one that counts."""
    found = [*differences.values(), *order.values(), *levels.values()]
    sentences = [f"{name}: {what} is {one.text}." for what, one in differences.items()]
    sentences += [f"{name}: {what}: {one.text}." for what, one in order.items()]
    if levels:
        texts = "; ".join(f"{attack} {one.text}" for attack, one in levels.items())
        sentences.append(f"{name}: accuracy of the defense: {texts}.")
    return [*sentences, f"{name}: {summary(found)}."]
