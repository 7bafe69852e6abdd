"""An audit reports solvers that do not converge, forward or backward, and no others."""

from __future__ import annotations

import pytest
import torch
from tests.audits.linear_defenses import plan_for
from tests.equilibria import Curved, Equilibrium
from tests.problems import normal, uniform

import saddlepoint as sp
from saddlepoint.audits import TargetError
from saddlepoint.audits.cells import Job
from saddlepoint.audits.diagnostics.convergence import MeasureResiduals
from saddlepoint.audits.diagnostics.symptoms import residual_symptoms
from saddlepoint.audits.diagnostics.values import SolverResiduals
from saddlepoint.audits.planning.suite import compose
from saddlepoint.audits.probes.stage import probe_stage
from saddlepoint.audits.request import AuditRequest
from saddlepoint.audits.verdict import Level, SymptomName, Verdict
from saddlepoint.evaluation import Threat
from saddlepoint.gradients import Checkpointed, Implicit, Phantom
from saddlepoint.solvers import Broyden, Picard
from saddlepoint.zoo.deq import DEQ, MonotoneDEQ, MonotoneNet, PeacemanRachford

N = 40
INPUTS = 6
STATES = 10
X = uniform(0, N, INPUTS)
Y = torch.zeros(N, dtype=torch.long)
SPACE = sp.Linf(0.05)
PLAIN_STEPS = Picard(steps=20, tolerance=1e-3)
FORWARD = SymptomName.SOLVER_NOT_CONVERGED
BACKWARD = SymptomName.BACKWARD_NOT_CONVERGED


class Net:
    """z = tanh(gain R z + U x), where R rotates five planes by 90 degrees.

    Plain steps converge for gain < 1 and circle for a larger gain.
    """

    def __init__(self, gain):
        rotation = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
        self.inner = torch.block_diag(*[rotation] * (STATES // 2))
        self.gain = gain
        self.inputs = 0.1 * normal(2, STATES, INPUTS)
        self.outputs = normal(3, 3, STATES)

    def inject(self, x):
        return x @ self.inputs.T

    def start(self, u):
        return torch.zeros_like(u)

    def cell(self, z, u):
        return (self.gain * z @ self.inner.T + u).tanh()

    def head(self, z):
        return z @ self.outputs.T


class OwnSolver(sp.Defense):
    """An equilibrium defense of a user, which only names its solver."""

    def __init__(self, gain, method):
        self.net = Net(gain)
        self.method = method

    def trace(self, x, ctx):
        u = self.net.inject(x)
        best = ctx.solve("mine", self.net.cell, self.net.start(u), u, method=self.method).best
        return sp.Trace((sp.View("final", self.net.head(best)),))


def job_for(defense, x, *, batch_size=16, **threat):
    y = torch.zeros(len(x), dtype=torch.long)
    return Job(defense, x, y, Threat(SPACE, **threat), seed=0, batch_size=batch_size)


def symptoms_of(job, points):
    """Symptoms of solvers on the images of a job and on other points, by name."""
    values = MeasureResiduals(torch.arange(len(points)), points).compute(job)
    found = residual_symptoms(SolverResiduals(**values)) if values else ()
    return {symptom.name: symptom for symptom in found}


def found(defense, x=X, points=None):
    """The same on images and on points near them."""
    near = (x + 0.05).clamp(max=1) if points is None else points
    return symptoms_of(job_for(defense, x), near)


class Adapting(OwnSolver):
    """Adapts to the batch, and cannot adapt to a single image."""

    memory = "batch"
    coupled = True

    def adapt(self, x, ctx):
        if len(x) < 2:
            raise ValueError("one image is too few to adapt to")
        return OwnSolver(3.0 if len(x) == N else 0.7, self.method)


def test_a_defense_that_adapts_is_evaluated_on_whole_batches():
    """If the attacker sees one batch, it is the whole stream: the solver circles with 40 images
    together, and converges with 16 at a time."""
    adapting = Adapting(0.7, PLAIN_STEPS)
    x = X[:39]
    assert not symptoms_of(job_for(adapting, x[:32]), x[:32])
    assert not symptoms_of(job_for(adapting, x, batch_size=38, rounds="one"), x)
    assert list(symptoms_of(job_for(adapting, X, rounds="one"), X)) == [FORWARD]


@pytest.mark.parametrize(
    "build",
    [lambda gain: DEQ(Net(gain), method=PLAIN_STEPS), lambda gain: OwnSolver(gain, PLAIN_STEPS)],
)
def test_a_solver_that_circles_is_reported_and_one_that_converges_is_not(build):
    assert not found(build(0.7))
    symptom = found(build(3.0))[FORWARD]
    assert symptom.level is Level.SERIOUS
    assert "100 % of clean images" in symptom.message
    assert "100 % of attacked images" in symptom.message


def test_worst_points_are_evaluated_as_well():
    """Zeros have their fixed point at the start; moved by 0.05 the solver circles."""
    symptom = found(DEQ(Net(3.0), method=PLAIN_STEPS), torch.zeros_like(X))[FORWARD]
    assert "clean" not in symptom.message
    assert "attacked images" in symptom.message


def test_a_few_images_without_a_fixed_point_are_a_warning():
    x = torch.zeros_like(X)
    x[:2] = X[:2]
    defense = DEQ(Net(3.0), method=PLAIN_STEPS)
    symptom = found(defense, x, points=torch.zeros_like(x))[FORWARD]
    assert symptom.level is Level.WARNING
    assert "5 % of clean images" in symptom.message


class OneBackwardStep(DEQ):
    """The default backward solve has 50 steps of Broyden; this one stops after one plain step."""

    def trace(self, x, ctx):
        rules = {"solve": Implicit(Picard(steps=1))}
        return super().trace(x, sp.Context(ctx.keys, rules, ctx.keep, ctx.solver_stats))


def test_a_backward_solve_that_does_not_converge_is_reported():
    method = Broyden(steps=40)
    assert not found(DEQ(Net(0.9), method=method))
    symptoms = found(OneBackwardStep(Net(0.9), method=method))
    assert list(symptoms) == [BACKWARD]
    assert symptoms[BACKWARD].level is Level.SERIOUS
    assert "of 16 images" in symptoms[BACKWARD].message


def test_the_monotone_defense_reports_its_own_residual():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = MonotoneNet(image=(1, 1, INPUTS), size=STATES, m=0.1).double().eval()
    x = X.view(N, 1, 1, INPUTS)
    assert not found(MonotoneDEQ(net, method=PeacemanRachford(steps=500)), x)
    assert list(found(MonotoneDEQ(net, method=PeacemanRachford(steps=1)), x)) == [FORWARD]


def test_a_defense_without_a_solver_is_evaluated_on_one_image_only():
    class Counted(sp.Plain):
        rows = 0

        def trace(self, x, ctx):
            self.rows += len(x)
            return super().trace(x, ctx)

    plain = Counted(torch.nn.Linear(INPUTS, 3).double())
    assert not found(plain)
    assert plain.rows == 1


def test_an_audit_shows_the_symptom_in_its_summary():
    x = X[:6]
    defense = DEQ(Net(3.0), method=Picard(steps=6))
    with torch.no_grad():
        y = defense.respond(x, sp.Context.seeded(0, len(x))).argmax(1)
    result = sp.audit(defense, x, y, threat=SPACE, adversaries=[sp.Direct("pgd", sp.PGD(2))])
    assert FORWARD in [symptom.name for symptom in result.symptoms]
    assert result.verdict is Verdict.INCONCLUSIVE
    assert FORWARD in result.summary()


@pytest.mark.parametrize(
    ("site", "defense"), [("solve", DEQ(Net(0.7))), ("mine", OwnSolver(0.7, PLAIN_STEPS))]
)
def test_attacks_through_the_solver_are_planned_if_there_is_one(site, defense):
    probed = probe_stage(AuditRequest(defense, X, Y, Threat(SPACE), allow_unusual=True))
    assert probed.facts.solves == {site}
    choices = compose(defense, Threat(SPACE), "quick", probed.facts)
    planned = {choice.name: choice.adversary for choice in choices}
    assert planned["apgd-through"].rules == {site: Checkpointed()}
    assert isinstance(planned["apgd-unrolled"].rules[site], Phantom)


def test_a_net_without_a_solver_has_no_solver_sites():
    plain = sp.Plain(torch.nn.Linear(INPUTS, 3).double())
    request = AuditRequest(plain, X, Y, Threat(SPACE), allow_unusual=True)  # it is not trained
    assert not probe_stage(request).facts.solves


class Broken(Net):
    """A net with a modified cell."""

    def __init__(self, change):
        super().__init__(0.7)
        self.change = change

    def cell(self, z, u):
        return self.change(super().cell(z, u))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f * torch.nan, "NaN or infinite logits on 16 of 16 clean images"),
        (lambda f: f[:, :3], r"z has shape \(16, 10\).*f\(z\) has shape \(16, 3\)"),
        (
            lambda f: f.float(),
            r"torch.float64.*f\(z\) has shape \(16, 10\) and (data )?type torch.float32",
        ),
    ],
    ids=["nan", "shape", "type"],
)
def test_a_broken_cell_is_rejected_with_the_reason(change, message):
    with pytest.raises(TargetError, match=message):
        plan_for(DEQ(Broken(change)), threat=SPACE, x=X, y=Y)


def test_a_cell_that_diverges_is_reported():
    """f(z) = 3 z + u diverges: the solver gives up, and the output uses its best state."""

    class Diverging(Net):
        def cell(self, z, u):
            return 3 * z + u

    symptom = found(DEQ(Diverging(1.0), method=PLAIN_STEPS))[FORWARD]
    assert symptom.level is Level.SERIOUS


def test_a_custom_equilibrium_that_converges_is_not_reported():
    method = Broyden(steps=30, tolerance=1e-8)
    assert not found(Equilibrium(Curved.contractive(3), method=method), uniform(0, 20, 7))


def test_a_detached_input_of_the_solver_does_not_stop_an_audit():
    """Attacks bypass the detached step. Without a plain gradient there is no backward residual."""

    class Detached(OwnSolver):
        def trace(self, x, ctx):
            return super().trace(ctx.through("cut", torch.Tensor.detach, x), ctx)

    assert not found(Detached(0.5, Broyden(steps=30, tolerance=1e-8)))
