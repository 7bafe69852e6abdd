"""Masks, target classes and corruptions on problems with known answers."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from tests.audits.probes.toy_targets import Declared, X, Y, net
from tests.cli.commands import call, error_of
from torch import nn

import saddlepoint as sp
from saddlepoint.attacks import CW, FAB, FMN, VMI, RayS
from saddlepoint.audits import TargetError
from saddlepoint.data.corruptions import CORRUPTIONS
from saddlepoint.describe import describe
from saddlepoint.evaluation import Corruption, FixedPoints, Mask, play
from saddlepoint.reports.threats import read_threat, why_unreadable
from saddlepoint.rng import Keys
from saddlepoint.runs.spec import SpecError, parse
from saddlepoint.runs.threat_specs import threat as threat_of

ALLOWED = torch.zeros(4, 4, dtype=torch.bool)
ALLOWED[1:3] = True
W = torch.randn(16, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
IMAGES = 0.4 + 0.2 * torch.rand(
    30, 1, 4, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64
)
SCORE = (IMAGES.flatten(1) - 0.5) @ W
LABELS = (SCORE > 0).long()


class Linear(nn.Module):
    """Two classes with the margin (x - 0.5) w."""

    def forward(self, x):
        score = (x.flatten(1) - 0.5) @ W.to(x)
        return torch.stack([-score / 2, score / 2], 1)


LINEAR = sp.Plain(Linear().eval())


@pytest.mark.parametrize(
    ("space", "attack"),
    [
        (sp.Linf(0.06), sp.PGD()),
        (sp.Linf(0.06), sp.APGD(40)),
        (sp.L2(0.15), sp.PGD()),
    ],
    ids=["pgd", "apgd", "l2"],
)
def test_a_masked_attack_on_a_linear_net_reaches_the_dual_norm_of_the_allowed_weights(
    space, attack
):
    dual = 1 if space.p == torch.inf else 2
    most = space.radius * torch.linalg.vector_norm(W[ALLOWED.flatten()], dual)
    threat = sp.Threat(space, mask=Mask.of(ALLOWED))
    episode = play(LINEAR, sp.Direct("attack", attack), IMAGES, LABELS, threat)
    # Images whose margin is within 2 % of the bound depend on the last steps.
    clear = (SCORE.abs() / most - 1).abs() > 0.02
    assert torch.equal(episode.correct[0].bool()[clear], (SCORE.abs() > most)[clear])
    assert 0 < float(episode.correct.mean()) < 1


ATTACKS = [
    sp.PGD(steps=3),
    sp.APGD(5),
    FAB(3),
    FMN(5),
    sp.Square(20),
    RayS(20),
    VMI(steps=2),
]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: type(attack).__name__)
def test_no_attack_changes_a_pixel_that_the_mask_protects(attack):
    threat = sp.Threat(sp.Linf(0.1), mask=Mask.of(ALLOWED))
    episode = play(sp.Plain(net()), sp.Direct("attack", attack), X, Y, threat)
    moved = (episode.points != X).flatten(2).amax((0, 1)).view(4, 4)
    assert not (moved & ~ALLOWED).any()
    assert moved.any()


def test_cw_keeps_the_mask_too():
    threat = sp.Threat(sp.L2(0.5), mask=Mask.of(ALLOWED))
    episode = play(sp.Plain(net()), sp.Direct("attack", CW(5)), X, Y, threat)
    assert torch.equal(episode.points[..., ~ALLOWED], X[..., ~ALLOWED])


def test_a_mask_has_the_shape_of_an_image_or_of_its_pixels():
    assert torch.equal(Mask.of(ALLOWED).allowed, ALLOWED)
    assert str(Mask.of(ALLOWED.int().numpy())) == "mask of 8 of 16 pixels"
    with pytest.raises(ValueError, match="allows no pixel"):
        Mask.of(torch.zeros(4, 4))
    threat = sp.Threat(sp.Linf(0.1), mask=Mask.of(torch.ones(5, 5)))
    with pytest.raises(ValueError, match=r"images have shape \[1, 4, 4\]"):
        sp.evaluate(sp.Plain(net()), [FixedPoints()], X, Y, threat=threat)


def test_the_target_class_of_two_classes_is_the_untargeted_goal():
    threat = sp.Threat(sp.Linf(0.03), target_class=1)
    x, y = threat.images(IMAGES, LABELS)
    assert (y == 0).all()
    attacks = [sp.Direct("pgd", sp.PGD())]
    targeted = sp.evaluate(LINEAR, attacks, IMAGES, LABELS, threat=threat)
    untargeted = sp.evaluate(LINEAR, attacks, x, y, threat=sp.Linf(0.03))
    assert torch.equal(targeted.correct, untargeted.correct)
    assert 0 < float(targeted.accuracy()) < 1


@pytest.mark.parametrize("goal", [0, 1, 2])
def test_success_means_that_the_answer_is_the_target_class(goal):
    threat = sp.Threat(sp.Linf(0.3), target_class=goal)
    x, _ = threat.images(X, Y)
    for attack in (sp.PGD(), sp.Square(40)):
        outcomes = sp.evaluate(net(), [sp.Direct("attack", attack)], X, Y, threat=threat)
        episode = outcomes.episodes[0]
        predicted = net()(episode.points).argmax(1)
        assert torch.equal(episode.correct[0].bool(), predicted != goal)
        assert torch.equal(episode.answered[0], predicted)
        assert len(episode.points) == len(x)
    points = sp.attack(net(), x, Y[goal != Y], threat=threat)
    assert (net()(points).argmax(1) == goal).any()


def test_a_target_class_of_an_early_exit_is_that_of_its_answer():
    class First(sp.Defense):
        """Two views; the first one answers."""

        def trace(self, x, ctx):
            z = net()(x)
            return sp.Trace((sp.View("a", z), sp.View("b", z.flip(1))))

        def answer(self, trace, ctx):
            return trace.views[0].logits

    threat = sp.Threat(sp.Linf(0.3), target_class=2)
    outcomes = sp.evaluate(First(), [sp.Direct("pgd", sp.PGD())], X, Y, threat=threat)
    plain = sp.evaluate(sp.Plain(net()), [sp.Direct("pgd", sp.PGD())], X, Y, threat=threat)
    assert torch.equal(outcomes.correct, plain.correct)


def test_impossible_goals_are_errors():
    threat = sp.Threat(sp.Linf(0.1), target_class=1)
    with pytest.raises(ValueError, match=r"threat\.images"):
        play(sp.Plain(net()), FixedPoints(), X, Y, threat)
    with pytest.raises(ValueError, match="all images are of the target class"):
        threat.images(X, torch.ones_like(Y))
    rejecting = Declared(lambda x, ctx: net()(x), rejects=True)
    with pytest.raises(ValueError, match="rejects"):
        play(rejecting, FixedPoints(), X, torch.zeros_like(Y), threat)
    with pytest.raises(ValueError, match="class number"):
        sp.Threat(sp.Linf(0.1), target_class=-1)


@pytest.mark.parametrize("target_class", [3, 12])
def test_a_target_class_that_the_model_does_not_have_is_an_error(target_class):
    threat = sp.Threat(sp.Linf(0.1), target_class=target_class)
    expected = rf"target class.* is {target_class}, but the \w+ has 3 classes \(0 to 2\)"
    with pytest.raises(ValueError, match=expected):
        sp.evaluate(net(), [sp.Direct("pgd", sp.PGD())], X, Y, threat=threat)
    with pytest.raises(ValueError, match=expected):
        sp.attack(net(), X, Y, threat=threat)
    with pytest.raises(TargetError, match=expected):
        sp.audit(net(), X, Y, threat=threat, budget="quick")


def test_the_command_line_rejects_a_target_class_that_the_model_does_not_have():
    error = error_of("audit", "zoo:digits-pgd", "--n", "12", "--target-class", "12")
    assert "the target class is 12, but the target has 10 classes (0 to 9)" in error


def test_images_are_corrupted_before_the_evaluation():
    corruption = Corruption.parse("gaussian-noise:3")
    threat = sp.Threat(sp.Linf(0), corruption=corruption)
    expected = CORRUPTIONS["gaussian_noise"](X, 3, Keys.of(0, torch.arange(len(X))))
    outcomes = sp.evaluate(net(), [FixedPoints()], X, Y, threat=threat)
    assert torch.equal(outcomes.episodes[0].points, expected)
    assert not torch.equal(expected, X)
    assert "gaussian noise of severity 3" in str(threat)


@pytest.mark.parametrize(
    ("text", "message"),
    [("fog", "such as fog:3"), ("fogg:3", "Did you mean 'fog'"), ("fog:6", "1 to 5")],
)
def test_unknown_corruptions_are_errors(text, message):
    with pytest.raises(ValueError, match=message):
        Corruption.parse(text)


def test_a_threat_model_is_rebuilt_from_its_record():
    threat = sp.Threat(
        sp.Linf(0.1), target_class=3, mask=Mask.of(ALLOWED), corruption=Corruption("fog", 2)
    )
    record = json.loads(json.dumps(describe(threat)))
    assert why_unreadable(record) == ""
    assert read_threat(record) == threat
    assert {"target_class", "mask", "corruption"}.isdisjoint(describe(sp.Threat(sp.Linf(0.1))))


def test_the_specification_has_all_of_them(tmp_path):
    np.save(tmp_path / "mask.npy", ALLOWED.numpy())
    values = {"target_class": 3, "mask": str(tmp_path / "mask.npy"), "corruption": "fog:3"}
    spec = parse({"target": "zoo:digits-pgd", "threat": values})
    found = threat_of(spec.threat)
    assert (found.target_class, found.corruption) == (3, Corruption("fog", 3))
    assert torch.equal(found.mask.allowed, ALLOWED)


def test_a_mask_that_cannot_be_read_is_an_error_without_unsafe_advice(tmp_path):
    np.save(tmp_path / "mask.npy", ALLOWED.numpy())
    (tmp_path / "text.npy").write_text("hello\n")
    for name, message in {
        "masc.npy": r"there is no mask .*masc\.npy\. Did you mean 'mask\.npy'",
        "text.npy": r"is no \.npy file of plain numbers\. Write it with np\.save",
    }.items():
        spec = parse({"target": "zoo:digits-pgd", "threat": {"mask": str(tmp_path / name)}})
        with pytest.raises(SpecError, match=message):
            threat_of(spec.threat)


def test_the_command_line_has_all_of_them(tmp_path):
    allowed = np.zeros((8, 8))
    allowed[2:6] = 1
    np.save(tmp_path / "mask.npy", allowed)
    words = ["audit", "zoo:digits-pgd", "--n", "12", "--eps", "0.3", "--budget", "quick"]
    words += ["--target-class", "3", "--mask", str(tmp_path / "mask.npy"), "--corruption", "fog:1"]
    words += ["--attacks", "fgsm", "--out", str(tmp_path / "run"), "--json"]
    result = call(*words)
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert "goal: class 3, mask of 32 of 64 pixels, images with fog" in record["threat"]
    assert record["n"] < 12
    stored = sp.Audit.load(tmp_path / "run")
    assert torch.equal(stored.worst_points[..., :2, :], stored.x[..., :2, :])
    assert "such as fog:3" in error_of("audit", "zoo:digits-pgd", "--corruption", "fog")
