"""Figures with matplotlib, for notebooks and papers. Needs the extra `plots`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from saddlepoint.phrases import at_most

if TYPE_CHECKING:
    from saddlepoint.audits.curve import Curve
    from saddlepoint.audits.result import Audit


def plot_audit(audit: Audit, ax: Any = None) -> Any:
    """Bars of the accuracy after each attack, and the worst case so far as a line.

    Args:
        audit: the audit.
        ax: the axes; default: new ones.

    Returns:
        The axes.
    """
    ax = _axes(ax)
    names = ["clean", *(row.name for row in audit.rows)]
    single = [audit.clean_accuracy, *(row.robust_accuracy for row in audit.rows)]
    running = [audit.clean_accuracy, *(row.running for row in audit.rows)]
    places = range(len(names))
    ax.barh(places, [100 * value for value in single], color="0.75", label="this attack alone")
    ax.plot([100 * value for value in running], places, "o-", color="C3", label="worst case so far")
    ax.set_yticks(places, names)
    ax.invert_yaxis()
    ax.set_xlim(0, 100)
    ax.set_xlabel("accuracy in %")
    ax.set_title(f"{audit.target}: {at_most(audit.robust_accuracy)}, {audit.verdict}")
    ax.legend(loc="best")
    return ax


def plot_curve(curve: Curve, ax: Any = None) -> Any:
    """Robust accuracy by radius with intervals over images.

    Args:
        curve: the curve.
        ax: the axes; default: new ones.

    Returns:
        The axes.
    """
    ax = _axes(ax)
    radii = [0.0, *curve.radii]
    ax.plot(radii, [100 * curve.clean_accuracy, *(100 * a for a in curve.accuracy)], "o-")
    low = [100 * interval.low for interval in curve.intervals]
    high = [100 * interval.high for interval in curve.intervals]
    ax.fill_between(curve.radii, low, high, alpha=0.2)
    ax.set_ylim(0, 100)
    ax.set_xlabel(f"{str(curve.spaces[0]).partition(' ')[0]} radius")
    ax.set_ylabel("robust accuracy in % (upper bound)")
    ax.set_title(curve.name)
    return ax


def _axes(ax: Any) -> Any:
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError(
            "plot needs matplotlib: pip install 'saddlepoint[plots]'. The report has figures "
            "without it: sp.write_report(audit, 'report.html')."
        ) from error
    return pyplot.subplots()[1]
