"""Every item of the checklist passes on one defense and fails on another; what is missing is said to be missing."""

from __future__ import annotations

import time

import pytest
import torch
from saddlepoint.audits.plan import Evidence, plan
from torch import nn

import saddlepoint as sp
from saddlepoint.attacks.losses import targeted_margin
from saddlepoint.audits.cells import Group
from saddlepoint.audits.diagnostics import checklist
from saddlepoint.evaluation.combinators import CleanCopies

RADIUS = 0.01


class Linear(nn.Module):
    """Two classes told apart by w . (x - 1/2): the worst case moves the score by radius ||w||_1."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(
            torch.randn(16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        )

    def forward(self, x):
        score = (x - 0.5) @ self.w
        return torch.stack([score, -score], 1)


NET = Linear().eval()
GRID = 0.1  # clean pixels are multiples of it, so that a defense can know where it is
X = (3 + torch.randint(0, 5, (80, 16), generator=torch.Generator().manual_seed(1))).double() * GRID
Y = NET(X).argmax(1)
THREAT = sp.Linf(RADIUS)


def anchor(x):
    return (x / GRID).round() * GRID


class Purified(sp.Defense):
    """net(purify(x))."""

    static = NET

    def __init__(self, purify=lambda x: x, calls=1):
        self.purify = purify
        self.calls = calls

    def trace(self, x, ctx):
        pure = ctx.through("purify", self.purify, x)
        for _ in range(self.calls - 1):
            NET(pure)
        return sp.Trace((sp.View("final", NET(pure)),))


class Tossed(Purified):
    """Noise of this size in the gradient, none in the answer."""

    random = True

    def __init__(self, noise):
        super().__init__()
        self.noise = noise

    def trace(self, x, ctx):
        slope = self.noise * ctx.randn_like(x)
        lost = (slope * (x - x.detach())).sum(1, keepdim=True)
        return sp.Trace((sp.View("final", NET(x) + torch.cat([lost, -lost], 1)),))


class Together(Purified):
    coupled = True


SAME = Purified()
WRONG_WAY = Purified(lambda x: 2 * x.detach() - x)  # the value of x, its slope reversed
ROUNDED = Purified(lambda x: (x * 512).round() / 512)  # clean up to rounding, and flat
WEAKER = Purified(
    lambda x: anchor(x.detach()) + 4 * (x - anchor(x.detach()))
)  # a perturbation counts four times
CLEANED = Purified(anchor)  # no perturbation below half the grid is seen

APGD = sp.Direct("apgd", sp.APGD(20))
SQUARE = sp.Direct("square", sp.Square(200))
EOT = sp.Direct("eot", sp.APGD(10), estimator=sp.EoT(4))
BPDA = sp.Direct("bpda", sp.APGD(20), rules={"purify": sp.BPDA()})
BACKWARDS = sp.Direct("backwards", sp.APGD(20), rules={"purify": sp.BPDA(lambda x: -x)})
TRANSFER = sp.Transfer(APGD, sp.Plain(NET))
SHORT = sp.Direct("short", sp.PGD(3, step_size=0.0015, random_start=False))


def trials(target, sent, threat=THREAT, y=Y):
    planned = plan(target, X, y, threat=threat, adversaries=sent)
    job = planned.job
    groups = [
        Group.of(job, rows, [job.play(sent, rows) for sent in planned.adversaries])
        for rows in job.groups
    ]
    return Evidence.of(planned, groups).trials


CASES = [
    (checklist.transfer, "pass", SAME, [APGD, TRANSFER]),
    (checklist.transfer, "fail", SAME, [APGD, sp.Transfer(CleanCopies(APGD), sp.Plain(NET))]),
    (
        checklist.transfer,
        "not run",
        SAME,
        [APGD, sp.Transfer(APGD, sp.Plain(Linear()))],
    ),  # another net's points
    (checklist.transfer, "does not apply", NET, [APGD]),
    (checklist.black_box, "pass", SAME, [SQUARE]),
    (checklist.black_box, "pass", NET, [SQUARE]),
    (checklist.black_box, "fail", WEAKER, [SQUARE]),
    (checklist.black_box, "not run", SAME, [APGD]),
    (checklist.white_box, "pass", SAME, [APGD]),
    (checklist.white_box, "fail", ROUNDED, [APGD]),
    (checklist.white_box, "not run", SAME, [SQUARE]),
    (checklist.white_box, "not run", lambda x: NET(x), [SQUARE]),
    (checklist.backward, "pass", ROUNDED, [BPDA, SQUARE]),
    (checklist.backward, "fail", ROUNDED, [BACKWARDS, SQUARE]),
    (checklist.backward, "not run", ROUNDED, [APGD]),
    (checklist.backward, "does not apply", SAME, [APGD]),
    (checklist.keys, "pass", Tossed(0.1), [EOT]),
    (checklist.keys, "fail", Tossed(1000.0), [EOT]),
    (checklist.keys, "not run", Tossed(0.1), [APGD]),
    (checklist.keys, "does not apply", SAME, [APGD]),
    (checklist.adaptive, "pass", SAME, [APGD, TRANSFER]),
    (checklist.adaptive, "fail", WRONG_WAY, [APGD, TRANSFER]),
    (checklist.adaptive, "not run", ROUNDED, [APGD, TRANSFER]),
    (checklist.adaptive, "not run", Tossed(0.1), [APGD, TRANSFER]),
    (checklist.adaptive, "does not apply", NET, [APGD]),
    (checklist.single, "pass", SAME, [APGD]),
    (checklist.single, "fail", SAME, [SHORT]),
    (checklist.single, "not run", SAME, [SQUARE]),
    (checklist.converged, "pass", SAME, [APGD]),
    (checklist.converged, "fail", SAME, [SHORT]),
    (checklist.converged, "not run", SAME, [SQUARE]),
    (checklist.unbounded, "pass", SAME, [APGD]),
    (checklist.unbounded, "fail", ROUNDED, [APGD]),
    (checklist.masked, "pass", SAME, [APGD, SQUARE]),
    (checklist.masked, "fail", ROUNDED, [APGD, SQUARE]),
    (checklist.masked, "not run", SAME, [APGD]),
    (checklist.static, "pass", SAME, [APGD, TRANSFER]),
    (checklist.static, "fail", WEAKER, [APGD, TRANSFER]),
    (checklist.static, "not run", SAME, [APGD]),
    (checklist.static, "does not apply", NET, [APGD]),
    (checklist.cost, "pass", CLEANED, [BPDA, TRANSFER]),
    (checklist.cost, "fail", Purified(calls=5), [APGD, TRANSFER]),
    (checklist.cost, "does not apply", NET, [APGD]),
]


@pytest.mark.parametrize(
    ("item", "state", "target", "sent"),
    CASES,
    ids=[f"{c[0].__name__}-{c[1]}-{k}" for k, c in enumerate(CASES)],
)
def test_an_item_is_in_the_state_that_follows_from_what_was_sent(item, state, target, sent):
    found = item(trials(target, sent))
    assert (found.state, bool(found.evidence)) == (state, True), found.evidence


def test_every_item_has_a_case_that_passes_and_one_that_fails():
    tried = {(item, state) for item, state, *_ in CASES} | {
        (checklist.clean, "pass"),
        (checklist.clean, "fail"),
    }
    assert {(item, state) for item in checklist.ITEMS for state in ("pass", "fail")} <= tried


@pytest.mark.parametrize(
    ("target", "state"), [(Together(), "pass"), (Together(lambda x: 2 * x.detach() - x), "fail")]
)
def test_an_attack_that_mends_wrong_answers_is_told(target, state):
    """Every fourth label is wrong from the start. Rows answer together, so that wrong ones are attacked too: climbing the wrong way
    makes them right."""
    y = torch.where(torch.arange(len(Y)) % 4 == 0, 1 - Y, Y)
    assert checklist.clean(trials(target, [APGD], y=y)).state == state


def test_without_gradients_in_the_threat_their_items_do_not_apply():
    found = {
        item.name: item.state
        for item in checklist.checklist(trials(NET, [SQUARE], sp.Threat(THREAT, access="score")))
    }
    gradients = (
        checklist.WHITE_BOX,
        checklist.BACKWARD,
        checklist.SINGLE,
        checklist.CONVERGED,
        checklist.UNBOUNDED,
        checklist.MASKED,
    )
    assert {found[name] for name in gradients} == {"does not apply"}
    assert found[checklist.BLACK_BOX] == "pass"


def test_a_threat_that_allows_any_image_has_no_wider_one():
    assert checklist.unbounded(trials(NET, [APGD], sp.Linf(0.5))).state == "does not apply"


def test_what_was_sent_is_known_by_its_parts_whatever_it_is_called():
    liar = sp.Direct("square with eot and bpda", sp.APGD(5))
    assert checklist.black_box(trials(SAME, [liar])).state == "not run"
    deep = sp.Restarts(
        sp.MultiTarget(sp.Direct("x", sp.APGD(5), rules={"purify": sp.BPDA()}), 1, targeted_margin),
        2,
    )
    assert checklist.backward(trials(ROUNDED, [deep])).state == "pass"


def test_a_cost_is_not_held_against_a_defense_whose_static_net_hardly_falls():
    """Between the third and the fourth distance to the boundary the net falls on three images: too few to show any gain."""
    distances = (((X - 0.5) @ NET.w).abs() / NET.w.abs().sum()).sort().values
    between = sp.Linf(float(distances[2:4].mean().detach()))
    item = checklist.cost(trials(Purified(calls=5), [APGD, TRANSFER], threat=between))
    assert item.state == "not run"
    assert "falls on 3 images" in item.evidence


def test_the_cost_counts_calls_of_the_static_net():
    assert trials(Purified(calls=5), [APGD]).cost.calls == 5
    assert trials(Purified(calls=5), [APGD]).cost.graded == 0


def test_gradients_that_are_no_numbers_do_not_pass_for_gradients_that_agree():
    class Undefined(Tossed):
        def trace(self, x, ctx):
            return super().trace(
                x + (x - x).abs().sqrt(), ctx
            )  # the slope of a root at zero is infinite, times zero

    t = trials(Undefined(0.1), [EOT])
    assert t.agreement == 0
    assert checklist.keys(t).state == "fail"


def test_time_that_others_use_is_no_cost_of_the_defense():
    class Waiting(Purified):
        def trace(self, x, ctx):
            time.sleep(0.05)
            return super().trace(x, ctx)

    assert trials(Waiting(), [sp.Direct("pgd", sp.PGD(1))]).cost.seconds < 0.05


def test_a_paired_test_of_images_that_were_answered_together_says_so():
    said = "as if each image were answered alone"
    assert (
        said in checklist.static(trials(Together(), [sp.Transfer(SHORT, sp.Plain(NET))])).evidence
    )
    assert said not in checklist.static(trials(SAME, [sp.Transfer(SHORT, sp.Plain(NET))])).evidence
