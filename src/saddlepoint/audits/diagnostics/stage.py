"""The diagnose stage: which diagnostics an audit runs, and how their results are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from saddlepoint.attacks.apgd import APGD
from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.oracle import grants
from saddlepoint.audits.cells import LazyCells, Measurement, Values
from saddlepoint.audits.diagnostics.attack_trials import (
    LongerAttack,
    OneStep,
    RepeatedSearch,
    StaticQueries,
    Unbounded,
    WatchAttack,
)
from saddlepoint.audits.diagnostics.bounds import Certify, certificate_method
from saddlepoint.audits.diagnostics.convergence import MeasureResiduals
from saddlepoint.audits.diagnostics.gradient_trials import GradientCosine, GradientFailure
from saddlepoint.audits.diagnostics.landscape import MeasureLandscape
from saddlepoint.audits.diagnostics.segments import ShrinkPoints
from saddlepoint.audits.diagnostics.static_net import PredictionCost, StaticOnPoints, cost_of
from saddlepoint.audits.diagnostics.values import (
    Compared,
    Diagnoses,
    Landscape,
    SolverResiduals,
    StaticResult,
    UnboundedResult,
    WatchedSteps,
)
from saddlepoint.audits.evidence import Evidence, needs_all_points
from saddlepoint.audits.planning.audit_cost import (
    FEW,
    MANY,
    UNBOUNDED_STEPS,
    most_expensive_run,
    repeated_passes,
)
from saddlepoint.audits.target.answer import AgainstAnswer, answer_is_not_last_view
from saddlepoint.evaluation import Adversary, Direct, RowSearch
from saddlepoint.gradients import Backprop, EoT, Estimator

Measure = Callable[[Sequence[Measurement]], Sequence[Values]]

_DRAWS = 8
# Diagnostics that repeat an attack make at most this share of the passes of all attacks, but run
# on the least number of rows with which they can show anything, and on whole batches.
_SHARE = 0.25
_LEAST = 8


@dataclass(frozen=True)
class _Diagnostic:
    """Measurements and the field of `Diagnoses` that follows from their results."""

    field: str
    measurements: Sequence[Measurement]
    read: Callable[[Sequence[Values]], object]


def diagnose(evidence: Evidence, measure: Measure) -> Evidence:
    """Run all diagnostics that apply, as cells, and add their results to the evidence."""
    diagnostics = [one for one in (make(evidence) for make in DIAGNOSTICS) if one is not None]
    places = [(one, k) for one in diagnostics for k in range(len(one.measurements))]

    def make(number: int) -> Measurement:
        one, k = places[number]
        return one.measurements[k]

    results = iter(measure(LazyCells(make, len(places))))
    found = {}
    for one in diagnostics:
        values = [next(results) for _ in one.measurements]
        found[one.field] = one.read(values)
    return replace(evidence, diagnoses=Diagnoses(**found))  # type: ignore[arg-type]


def _gradient_failure(e: Evidence) -> _Diagnostic | None:
    if not grants(e.defense.grants, "gradient"):
        return None
    cells = [GradientFailure(e.sample(MANY))]
    return _Diagnostic("gradient_failure", cells, lambda v: float(v[0]["fails"].double().mean()))


def _few(e: Evidence) -> int:
    """Rows of a diagnostic that repeats the strongest attack.

    They are fewer where that is a remedy which costs more than any planned attack, so that the
    cost of the audit is an upper bound, and where the attacks that the budget chose made few
    passes. Few passes of attacks that the user chose are a reason to check these attacks.
    """
    assert e.strongest is not None, "used only where there is an iterative attack"
    draws = e.plan.job.threat.draws if e.defense.random else 1
    cost = e.strongest[1].cost(draws)
    if cost is None:
        return FEW
    planned = most_expensive_run([c for c in e.plan.choices if not c.against], draws)
    most = FEW
    if planned and cost.total > planned:
        most = max(FEW * planned // cost.total, 1)
    if not e.plan.composed:
        return most
    passes = sum(row.forward + row.backward for row in e.rows) * len(e.plan.job.x)
    affordable = int(_SHARE * passes / repeated_passes(e.strongest[1], draws))
    return min(most, max(affordable, _LEAST))


def _watched(e: Evidence) -> _Diagnostic | None:
    if e.strongest is None:
        return None
    correct = e.clean >= 0.5
    independent = e.defense.unit == "example"
    rows = e.sample(_few(e), correct) if independent else e.batch(correct)
    if not len(rows):
        return None
    before = rows[:0]
    if e.defense.unit == "stream":
        before = torch.arange(int(rows[0]), device=rows.device)
    watched = WatchAttack(e.strongest[1], torch.cat([before, rows]), len(before))
    return _Diagnostic("watched", [watched], lambda v: WatchedSteps(**v[0]))


def _one_step(e: Evidence) -> _Diagnostic | None:
    if e.strongest is None:
        return None
    rows = e.sample(MANY)
    many = e.remaining([run for run, _ in e.iterative(e.runs)])[rows.cpu()]
    cells = [OneStep(e.strongest[1], rows)]
    return _Diagnostic("one_step", cells, lambda v: Compared(v[0]["correct"], many))


def _longer(e: Evidence) -> _Diagnostic | None:
    if e.strongest is None:
        return None
    unbroken = e.robust >= 0.5
    rows = e.sample(_few(e), unbroken)
    if not len(rows):
        nothing = Compared(e.robust[:0], e.robust[:0])
        return _Diagnostic("longer", [], lambda _: nothing)
    before = e.robust[rows.cpu()]
    counted = e.attacked_again(rows, unbroken)
    points = e.points[rows.cpu()]
    cells: list[Measurement] = [LongerAttack(e.strongest[1], rows, points, len(e.runs))]
    searches = [run.adversary for run in e.runs if isinstance(run.adversary, RowSearch)]
    cells += [RepeatedSearch(search, rows) for search in searches]
    return _Diagnostic(
        "longer",
        cells,
        lambda v: Compared(
            v[0].get("before", before)[counted],
            min((values["after"][counted] for values in v), key=lambda after: float(after.sum())),
        ),
    )


def _unbounded(e: Evidence) -> _Diagnostic | None:
    space = e.plan.job.threat.space
    dimension = e.plan.job.x[0].numel()
    radius = (space.box[1] - space.box[0]) / 2 * dimension ** (1 / space.p)
    if radius <= space.radius or not e.gradients_available:
        return None
    cells = [Unbounded(_wide_attack(e), radius, e.sample(MANY))]
    return _Diagnostic(
        "unbounded", cells, lambda v: UnboundedResult(radius, float(v[0]["accuracy"]))
    )


def _wide_attack(e: Evidence) -> Adversary:
    """The strongest attack with APGD, or APGD on the cross-entropy if there is none."""
    if e.strongest is not None:
        return e.strongest[1].map_direct(
            lambda direct: replace(direct, attack=APGD(UNBOUNDED_STEPS))
        )
    estimator: Estimator = EoT(_DRAWS) if e.defense.random else Backprop()
    attack = Direct("unbounded", APGD(UNBOUNDED_STEPS), loss=cross_entropy, estimator=estimator)
    return AgainstAnswer(attack) if answer_is_not_last_view(e.defense) else attack


def _static(e: Evidence) -> _Diagnostic | None:
    if e.static is None or not needs_all_points(e.plan):
        return None
    groups = e.plan.job.groups
    count = len(e.plan.adversaries)

    def make(g: int) -> Measurement:
        points = tuple(e.episodes[g * count + a].points.cpu() for a in range(count))
        return StaticOnPoints(groups[g], points, e.rows_at_once)

    return _Diagnostic(
        "static",
        LazyCells(make, len(groups)),
        lambda v: StaticResult(_joined(v, "clean"), _joined(v, "robust")),
    )


def _static_queries(e: Evidence) -> _Diagnostic | None:
    runs = [run for run in e.black_box if not run.remedy]
    if e.static is None or not runs:
        return None
    rows = e.sample(MANY)
    defense = e.remaining(runs)[rows.cpu()]
    cells = [StaticQueries(tuple(_unwrapped(run.adversary) for run in runs), rows)]
    return _Diagnostic("static_queries", cells, lambda v: Compared(defense, v[0]["correct"]))


def _unwrapped(adversary: Adversary) -> Adversary:
    return adversary.adversary if isinstance(adversary, AgainstAnswer) else adversary


def _gradient_cosine(e: Evidence) -> _Diagnostic | None:
    if e.strongest is None or not e.defense.random:
        return None
    cells = [GradientCosine(e.strongest[1], e.sample(FEW))]
    return _Diagnostic("gradient_cosine", cells, lambda v: float(v[0]["cosine"]))


def _cost(e: Evidence) -> _Diagnostic | None:
    if e.static is None:
        return None
    return _Diagnostic("cost", [PredictionCost(e.sample(MANY))], lambda v: cost_of(v[0]))


def _landscape(e: Evidence) -> _Diagnostic | None:
    rows = e.sample(FEW if e.strongest is None else _few(e), e.robust >= 0.5)
    # Without such images, for a defense that adapts at every point, or with labels only there is
    # no landscape to measure.
    adapts = e.defense.memory != "none"
    if not len(rows) or adapts or e.defense.grants == "decision":
        return None
    cells = [MeasureLandscape(rows, e.points[rows.cpu()])]
    return _Diagnostic("landscape", cells, lambda v: Landscape(rows.cpu(), **v[0]))


def _residuals(e: Evidence) -> _Diagnostic | None:
    rows = torch.arange(len(e.plan.job.x), device=e.plan.job.x.device)
    cells = [MeasureResiduals(rows, e.points)]
    return _Diagnostic("residuals", cells, lambda v: SolverResiduals(**v[0]) if v[0] else None)


def _shrunk(e: Evidence) -> _Diagnostic | None:
    job = e.plan.job
    if e.defense.random or e.defense.unit != "example":
        return None
    broken = (e.robust < 0.5) & (e.clean >= 0.5)  # [N]
    every = (rows[broken[rows.cpu()].to(rows.device)] for rows in job.groups)
    groups = [rows for rows in every if len(rows)]

    def make(g: int) -> Measurement:
        return ShrinkPoints(groups[g], e.points[groups[g].cpu()])

    def read(values: Sequence[Values]) -> Tensor:
        sizes = torch.full((len(job.x),), torch.inf, dtype=job.x.dtype)
        for rows, value in zip(groups, values, strict=True):
            sizes = sizes.index_copy(0, rows.cpu(), value["size"])
        return sizes

    return _Diagnostic("shrunk", LazyCells(make, len(groups)), read)


def _certified(e: Evidence) -> _Diagnostic | None:
    job = e.plan.job
    if certificate_method(e.defense, job.x.dtype) is None:
        return None
    cells = [Certify(rows, e.rows_at_once) for rows in job.groups]
    return _Diagnostic("certified", cells, lambda v: _joined(v, "certified"))


def _joined(values: Sequence[Values], name: str) -> Tensor:
    return torch.cat([each[name] for each in values])


DIAGNOSTICS: tuple[Callable[[Evidence], _Diagnostic | None], ...] = (
    _gradient_failure,
    _watched,
    _one_step,
    _longer,
    _unbounded,
    _static,
    _static_queries,
    _gradient_cosine,
    _cost,
    _landscape,
    _residuals,
    _shrunk,
    _certified,
)
