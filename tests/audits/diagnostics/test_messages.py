"""Messages of the checklist and of symptoms are right at the edges of the evidence.

The evidence is real for a few images; its diagnoses are replaced by every edge: none, one and all
images, attacks that help, means over draws, one image, one part, one call.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest
import torch
from tests.audits.linear_defenses import (
    APGD,
    IDENTITY,
    NET,
    SQUARE,
    TRANSFER,
    Purified,
    X,
    Y,
    plan_for,
)

import saddlepoint as sp
from saddlepoint.audits import collect
from saddlepoint.audits.diagnostics.checklist import checklist
from saddlepoint.audits.diagnostics.symptoms import residual_symptoms, symptoms
from saddlepoint.audits.diagnostics.values import (
    Compared,
    Landscape,
    SolverResiduals,
    StaticResult,
    UnboundedResult,
    WatchedSteps,
)
from saddlepoint.audits.diagnostics.wording import broken_images, calls_of
from saddlepoint.audits.pipeline import InProcess
from saddlepoint.audits.remedies.results import RemedyResults
from saddlepoint.audits.statistics import wilson
from saddlepoint.audits.verdict import (
    Comparisons,
    Cost,
    Item,
    ItemName,
    Level,
    State,
    SymptomName,
    decide,
)
from saddlepoint.evaluation import CleanCopies, Threat

PLURALS = [
    "images",
    "outputs",
    "points",
    "parts",
    "draws",
    "starts",
    "steps",
    "views",
    "branches",
    "times",
    "classes",
    "rounds",
    "cells",
    "items",
    "copies",
    "queries",
    "attacks",
    "predictions",
    "sites",
]
WRONG = {
    "a plural after 1": re.compile(rf"(?<![\d.,/]) 1 (\w+ )?({'|'.join(PLURALS)})\b"),
    "a singular after another count": re.compile(
        r"(?<![\d.])(?:0|[2-9]|\d\d+) (\w+ )?(image|output|point|part|draw|start|view|branch)\b"
    ),
    "a zero with decimals": re.compile(r"(?<![\d.])0\.0 (?!over)"),
    "an inexact hundred": re.compile(r"100\.0 %"),
    "a negative part": re.compile(r"-\d+(\.\d+)? (%|points|of|images|times)"),
    "NaN": re.compile(r"\b(nan|NaN)\b"),
    "a verb that does not agree": re.compile(r"(?<!of )\b1 (\w+ )?(\w+) (are|were|have)\b"),
}


def problems(text):
    return [problem for problem, pattern in WRONG.items() if pattern.search(f" {text}")]


def messages(evidence):
    items = [item.evidence for item in checklist(evidence)]
    return [*items, *(symptom.message for symptom in symptoms(evidence))]


def assert_right(texts):
    wrong = {text: problems(text) for text in texts if problems(text)}
    assert wrong == {}


class NoisyOutputs(Purified):
    """Noise in the logits: correctness is a mean over draws."""

    random = True

    def trace(self, x, ctx):
        noise = 0.3 * ctx.randn_like(x[:, :2])
        return sp.Trace((sp.View("final", NET(x) + noise),))


def evidence_on(n, target=IDENTITY, radius=0.01, draws=1, adversaries=(APGD, TRANSFER, SQUARE)):
    threat = Threat(sp.Linf(radius), draws=draws)
    return collect(plan_for(target, adversaries, threat, X[:n], Y[:n]), InProcess())


@pytest.mark.parametrize(
    "text",
    [
        "1 images are",
        "for 1 clean images",
        "3 image",
        "0.0 times",
        "100.0 % of",
        "-3.1 % of images",
        "broke -3.1 points",
        "on nan %",
        "1 image are",
    ],
)
def test_a_wrong_message_is_recognized(text):
    assert problems(text)


@pytest.mark.parametrize(
    "text",
    [
        "1 of 64 images",
        "1 of 1 image is",
        "8/255 images",
        "2.1 times",
        "10.0 %",
        "a cosine of -0.31",
    ],
)
def test_a_right_message_is_recognized(text):
    assert problems(text) == []


@pytest.mark.parametrize("radius", [1e-6, 0.01, 0.3], ids=["none broken", "some", "all broken"])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_messages_of_few_images(n, radius):
    assert_right(messages(evidence_on(n, radius=radius)))


@pytest.mark.parametrize("draws", [1, 3])
@pytest.mark.parametrize("n", [1, 4])
def test_messages_of_a_randomized_defense(n, draws):
    noisy = evidence_on(n, NoisyOutputs(), draws=draws)
    assert_right(messages(noisy))


def correctness(n):
    """Edges of the correctness of n images: none, one, all, and a mean over draws."""
    one = torch.zeros(n, dtype=torch.float64)
    one[0] = 1
    return [torch.zeros_like(one), one, torch.ones_like(one), torch.full_like(one, 0.4)]


@pytest.fixture(scope="module", params=[1, 3], ids=["one image", "three images"])
def base(request):
    return evidence_on(request.param)


def test_messages_of_every_comparison(base):
    n = len(base.clean)
    for first, second in itertools.product(correctness(n), repeat=2):
        compared = Compared(first, second)
        diagnoses = replace(
            base.diagnoses,
            one_step=compared,
            longer=compared,
            static_queries=compared,
            static=StaticResult(first, second),
        )
        assert_right(messages(replace(base, diagnoses=diagnoses)))


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999, 1.0])
def test_messages_of_every_share(base, share):
    diagnoses = replace(
        base.diagnoses, gradient_failure=share, unbounded=UnboundedResult(0.5, share)
    )
    texts = messages(replace(base, diagnoses=diagnoses))
    assert_right(texts)
    exact = {
        0.0: " 0 %",
        0.001: "less than 1 %",
        0.5: "50 %",
        0.999: "more than 99 %",
        1.0: "100 %",
    }
    assert [exact[share] in text for text in texts].count(True) >= 2


@pytest.mark.parametrize("calls", [0.0, 1.0, 2.0, 2.5])
@pytest.mark.parametrize("graded", [0.0, 1.0])
@pytest.mark.parametrize("seconds", [1e-9, 0.04, 1.0, 40.0])
def test_messages_of_every_cost(base, calls, graded, seconds):
    cost = Cost(calls, min(calls, graded), seconds, 1.0)
    diagnoses = replace(base.diagnoses, cost=cost)
    assert_right(messages(replace(base, diagnoses=diagnoses)))


def test_calls_of_the_static_net():
    texts = [calls_of(Cost(*numbers, 1.0, 1.0)) for numbers in ((0, 0), (1, 0), (1, 1), (5, 1))]
    assert texts == [
        "does not call it",
        "calls it once",
        "calls it once, with gradients",
        "calls it 5 times, once with gradients",
    ]
    assert calls_of(Cost(5, 5, 1.0, 1.0)) == "calls it 5 times, each time with gradients"
    assert calls_of(Cost(2.5, 0, 1.0, 1.0)) == "calls it on average 2.5 times"


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("success", [True, False])
@pytest.mark.parametrize("gradient", [0.0, 1.0, float("nan")])
def test_messages_of_recorded_steps(n, success, gradient):
    evidence = evidence_on(n, radius=1e-6)
    steps = torch.linspace(0, 1, 8, dtype=torch.float64)[:, None].expand(8, n)
    watched = WatchedSteps(
        value=steps,
        success=torch.full((8, n), success),
        gradient=torch.full((8, n), gradient, dtype=torch.float64),
        robust=torch.ones(n, dtype=torch.bool),
    )
    diagnoses = replace(evidence.diagnoses, watched=watched)
    assert_right(messages(replace(evidence, diagnoses=diagnoses)))


@pytest.mark.parametrize("margin", [0.0, 1e-9, -1.0])
def test_messages_of_a_landscape(margin):
    n = 3
    evidence = evidence_on(n, radius=1e-6)
    line = torch.full((4, n), margin, dtype=torch.float64)
    line[1] = 1.0
    landscape = Landscape(
        rows=torch.arange(n),
        near=torch.ones(2, n, dtype=torch.float64),
        center=torch.full((n,), margin, dtype=torch.float64),
        cosine=torch.full((n,), -0.001, dtype=torch.float64),
        line=line,
        line_success=line > 0,
    )
    diagnoses = replace(evidence.diagnoses, landscape=landscape)
    found = {s.name: s.message for s in symptoms(replace(evidence, diagnoses=diagnoses))}
    assert_right(found.values())
    assert "3 of 3 unbroken images" in found[SymptomName.OVERSHOOTING]
    assert "100 % or more" in found[SymptomName.UNSTABLE_PREDICTIONS]
    assert "cosine of 0.00" in found[SymptomName.GRADIENTS_DISAGREE]


@pytest.mark.parametrize("far", [1, 2, 3])
def test_messages_of_solver_residuals(far):
    residual = torch.zeros(3, dtype=torch.float64)
    residual[:far] = 0.5
    found = {s.name: s for s in residual_symptoms(SolverResiduals(residual, residual, residual))}
    backward = found[SymptomName.BACKWARD_NOT_CONVERGED].message
    assert f"on {far} of 3 images" in backward
    assert_right(symptom.message for symptom in found.values())


def test_a_solve_that_diverged_to_nan_is_reported():
    near = torch.zeros(2, dtype=torch.float64)
    diverged = torch.tensor([float("nan"), 0.0], dtype=torch.float64)
    found = {s.name: s for s in residual_symptoms(SolverResiduals(diverged, near, diverged))}
    assert found[SymptomName.SOLVER_NOT_CONVERGED].level is Level.SERIOUS
    assert "on 1 of 2 images" in found[SymptomName.BACKWARD_NOT_CONVERGED].message


def test_an_attack_that_helps_broke_none():
    half = torch.full((4,), 0.5, dtype=torch.float64)
    assert broken_images(Compared(half, half + 0.25)) == "none of 4 images"
    assert broken_images(Compared(0 * half, 0 * half)) == "none of 4 images"
    assert broken_images(Compared(half[:1], half[:1] + 0.25)) == "none of 1 image"
    shown = "1.0 of 4 images (mean over draws)"
    assert broken_images(Compared(half, half - 0.251)) == shown


def test_black_box_attacks_that_break_nothing_more_are_said_to_break_no_more(base):
    item = next(item for item in checklist(base) if item.name is ItemName.MASKED)
    assert item.evidence == "square broke no more than attacks with gradients."


def test_a_transfer_of_no_clean_image_does_not_count_them():
    """The attack would propose clean images, but succeeds on all images."""
    copies = sp.Transfer(CleanCopies(APGD), sp.Plain(NET))
    evidence = evidence_on(3, radius=0.3, adversaries=(copies,))
    item = next(item for item in checklist(evidence) if item.name is ItemName.TRANSFER)
    assert item.state is State.FAIL
    assert "transfers clean images where there is no success (here on no image)" in item.evidence


def test_clean_copies_of_one_image():
    copies = sp.Transfer(CleanCopies(APGD), sp.Plain(NET))
    evidence = evidence_on(1, radius=1e-6, adversaries=(copies,))
    found = {s.name: s.message for s in symptoms(evidence)}
    assert found[SymptomName.CLEAN_COPIES] == (
        "for 1 image the attack returned the clean image: it was not attacked."
    )
    assert_right(messages(evidence))


def test_an_attack_with_two_runs_of_one_name_is_named_once_in_the_singular():
    evidence = evidence_on(2, NET, adversaries=(APGD,))
    item = next(item for item in checklist(evidence) if item.name is ItemName.WHITE_BOX)
    assert item.evidence.startswith("apgd leaves ")
    both = evidence_on(2, NET, adversaries=(APGD, sp.Direct("pgd", sp.PGD(2))))
    item = next(item for item in checklist(both) if item.name is ItemName.WHITE_BOX)
    assert item.evidence.startswith("apgd and pgd leave ")


def test_remedies_that_broke_nothing_or_a_part_are_worded(base, monkeypatch):
    choices = tuple(replace(choice, against=("x",)) for choice in base.plan.choices[:1])
    plan = replace(base.plan, choices=(*choices, *base.plan.choices[1:]))
    evidence = replace(base, plan=plan)
    for broken in (-0.3, 0.0, 0.4, 1.0):
        monkeypatch.setattr(type(evidence), "broken_by", lambda _, __, found=broken: found)
        item = RemedyResults.of(evidence).on_item(Item("x", State.FAIL, "failed."))
        assert_right([item.evidence])
        assert ("none" in item.evidence) == (broken <= 0)


@pytest.mark.parametrize("robust", [0.0, 0.0004, 0.5, 0.9996, 1.0])
def test_a_verdict_never_rounds_a_bound_to_an_exact_end(robust):
    compared = Comparisons(claim=1.0, standard=1.0)
    reasons = decide(robust, 5000, wilson(robust, 5000), (), (), compared).reasons
    assert_right(reasons)
    bound = {0.0: "≤ 0 %", 0.0004: "≤ 0.1 %", 0.5: "≤ 50.0 %", 0.9996: "< 100 %"}
    assert robust == 1 or bound[robust] in reasons[0]


class Sharpened(torch.nn.Module):
    """A step of gradient ascent on the image before the network, without a declaration."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.net = NET
        self.steps = steps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        point = x
        for _ in range(self.steps):
            with torch.enable_grad():
                start = point.detach().requires_grad_()
                (gradient,) = torch.autograd.grad(self.net(start).logsumexp(1).sum(), start)
            point = point + 0.01 * gradient
        logits: torch.Tensor = self.net(point)
        return logits


@pytest.mark.parametrize("steps", [0, 1])
def test_a_module_that_optimizes_is_told_how_to_declare_its_static_net(steps: int) -> None:
    audit = sp.audit(Sharpened(steps), X, Y, threat=sp.Linf(0.1), budget="quick")
    messages = {item.name: item.evidence for item in audit.checklist}
    told = [messages[name] for name in (ItemName.TRANSFER, ItemName.NOT_WEAKER, ItemName.COST)]
    assert all(("`static`" in message) is (steps == 1) for message in told)
