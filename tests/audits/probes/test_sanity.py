"""Usual mistakes of a request stop it before any attack, and weak models do not."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.audits.linear_defenses import APGD, NET, SQUARE, THREAT, X, Y
from torch import nn

import saddlepoint as sp
from saddlepoint import zoo
from saddlepoint.audits import AuditRequest
from saddlepoint.audits.probes.sanity import unusual_radius
from saddlepoint.audits.probes.stage import probe_stage
from saddlepoint.audits.target.admission import TargetError
from saddlepoint.audits.verdict import Level, State, SymptomName, Verdict
from saddlepoint.cli.demo_models import MODELS
from saddlepoint.evaluation import Threat

DIGITS = sp.load_data("digits", n=128)
SIZE = (3, 6, 6)


class Colors(nn.Module):
    """A linear net for color images, with a function before it."""

    def __init__(self, before=lambda x: x, classes=10):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(108, classes, generator=generator))
        self.before = before

    def forward(self, x):
        return (self.before(x) - 0.5).flatten(1) @ self.weight


def color_images(n=128, classes=10):
    """Images with the labels of `Colors`, and a large margin."""
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(40 * n, *SIZE, generator=generator)
    with torch.no_grad():
        logits = Colors(classes=classes)(x)
    best = logits.topk(2).values
    rows = (best[:, 0] - best[:, 1]).topk(n).indices
    return x[rows], logits.argmax(1)[rows]


def request(target, x, y, **settings):
    threat = settings.pop("threat", sp.Linf(0.1))
    target = target.eval() if isinstance(target, nn.Module) else target
    return AuditRequest(target, x, y, Threat(threat), **settings)


def message(*arguments, **settings):
    with pytest.raises(TargetError) as error:
        probe_stage(request(*arguments, **settings))
    return str(error.value)


def passes(*arguments, **settings):
    findings = probe_stage(request(*arguments, **settings)).findings
    return SymptomName.UNUSUAL not in {finding.name for finding in findings}


def net():
    return zoo.load("digits-standard")


@pytest.mark.parametrize(
    ("shift", "text"),
    [(1, "Pass y - 1."), (9, "Pass y + 1."), (3, "Pass y - 3."), (5, "Pass y + 5.")],
)
@pytest.mark.parametrize("n", [20, 128])
def test_shifted_labels_are_named(shift, text, n):
    x, y = DIGITS
    found = message(net(), x[:n], (y[:n] + shift) % 10)
    assert "labels are shifted" in found
    assert text in found
    assert "allow_unusual" in found


def test_constant_predictions_are_no_shifted_labels():
    x = torch.rand(60, *SIZE, generator=torch.Generator().manual_seed(0))
    found = message(lambda v: torch.eye(10)[2].repeat(len(v), 1), x, torch.ones(60).long())
    assert "No usual mistake explains it" in found


def test_labels_in_another_order_are_named():
    x, y = DIGITS
    order = torch.tensor([0, 1, 8, 2, 3, 9, 4, 6, 5, 7])
    assert "in another order" in message(net(), x, order[y])


def test_exchanged_labels_of_two_classes_are_named():
    assert "labels are shifted" in message(NET, X, 1 - Y, threat=THREAT)


class Bright(nn.Module):
    """The digits net for pixels from 0 to 255."""

    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, x):
        return self.net(x / 255)


def test_pixels_that_were_divided_by_255_twice_are_named():
    x, y = DIGITS
    assert "divided by 255 twice" in message(net(), x / 255, y, threat=sp.Linf(0.001))
    assert "expects pixels from 0 to 255" in message(Bright(), x, y)


def test_pixels_up_to_255_for_a_net_that_expects_1_are_named():
    x, y = color_images()
    space = sp.Linf(8, box=(0.0, 255.0))
    target = Colors(lambda v: v.clamp(0, 1))
    assert "expects pixels in [0, 1]" in message(target, 255 * x, y, threat=space)


def imagenet(x):
    mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
    return (x - mean) / torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


UNDO = {
    "(BGR)": lambda x: x.flip(1),
    "2 x - 1": lambda x: 2 * x - 1,
    "of ImageNet": imagenet,
    "inverted pixels": lambda x: 1 - x,
    "[N, H, W, C]": lambda x: x.permute(0, 2, 3, 1),
    "rows and columns": lambda x: x.transpose(2, 3),
    "from 0 to 255": lambda x: 255 * x,
}


@pytest.mark.parametrize("name", list(UNDO))
def test_images_in_another_form_than_the_model_expects_are_named(name):
    """Every prediction is correct on images in the form that the model expects."""
    model = Colors(lambda v: torch.sin(6 * v))
    x, _ = color_images()
    y = model(UNDO[name](x)).argmax(1)
    found = message(model, x, y)
    assert name in found
    assert "it is 100 %" in found


def test_without_a_cause_the_message_says_what_to_check():
    x = DIGITS.x
    generator = torch.Generator().manual_seed(0)
    random = torch.randint(0, 10, (128,), generator=generator)
    found = message(net(), x, random)
    assert "near or below chance (10.0 % for 10 classes)" in found
    assert "No usual mistake explains it" in found


def test_a_claim_above_the_clean_accuracy_is_impossible():
    labels = weak_labels(0.45)
    assert passes(net(), DIGITS.x, labels, claim=0.5)
    found = message(net(), DIGITS.x, labels, claim=0.9)
    assert "no model is more accurate under attack" in found


def weak_labels(share):
    """Labels of which a share agrees with the images."""
    generator = torch.Generator().manual_seed(0)
    other = (DIGITS.y + torch.randint(1, 10, (128,), generator=generator)) % 10
    keep = torch.rand(128, generator=generator).argsort() < share * 128
    return torch.where(keep, DIGITS.y, other)


def warnings(*arguments, **settings):
    findings = probe_stage(request(*arguments, **settings)).findings
    return [one.message for one in findings if one.name is SymptomName.UNUSUAL]


@pytest.mark.parametrize("accuracy", [0.25, 0.45, 0.7])
@pytest.mark.parametrize("n", [1, 2, 10, 30, 128])
def test_a_weak_model_is_no_reason_to_stop(accuracy, n):
    found = warnings(net(), DIGITS.x[:n], weak_labels(accuracy)[:n])
    assert all("which may be chance" in message for message in found)
    assert n < 128 or not found


def test_a_weak_model_of_two_classes_is_no_reason_to_stop():
    wrong = torch.arange(len(Y)) % 5 < 2
    found = warnings(NET, X, torch.where(wrong, 1 - Y, Y), threat=THREAT)
    assert all("which may be chance (50.0 % for 2 classes)" in message for message in found)


def test_an_accuracy_that_may_be_chance_is_a_warning_where_images_are_few():
    """4 of 32 images are correct: the interval includes 10 %, but also a weak classifier."""
    x = DIGITS.x[:32]
    y = DIGITS.y[:32].clone()
    y[4:] = (y[4:] + 1 + torch.arange(28) % 9) % 10
    (found,) = warnings(net(), x, y)
    assert "12.5 % on 32 images, which may be chance (10.0 % for 10 classes)" in found
    assert "Use more images" in found
    assert "check the labels" in found


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_no_model_of_the_demonstration_has_a_warning(model):
    assert passes(model.build(), DIGITS.x[:32], DIGITS.y[:32])


def test_a_model_that_is_somewhat_better_with_other_images_passes_with_a_warning():
    """24 images are correct only in BGR, 30 are always wrong, 74 are gray and always correct."""
    colors, _ = color_images()
    other = Colors()(colors).argmax(1) != Colors()(colors.flip(1)).argmax(1)
    x = colors.mean(1, keepdim=True).repeat(1, 3, 1, 1)
    x[:24] = colors[other][:24]
    y = Colors()(x.flip(1)).argmax(1)
    y[24:54] = (y[24:54] + 1 + torch.arange(30) % 9) % 10
    findings = probe_stage(request(Colors(), x, y)).findings
    found = [one for one in findings if one.name is SymptomName.UNUSUAL]
    assert [one.level for one in found] == [Level.WARNING]
    assert "With channels in reverse order (BGR) it is 76.6 %" in found[0].message


def test_callables_randomized_stateful_and_adapting_targets_are_checked():
    x, y = DIGITS
    wrong = (y + 1) % 10
    model = net()
    assert "labels are shifted" in message(lambda v: model(v).detach(), x, wrong)
    assert "labels are shifted" in message(lambda v: model(v).argmax(1), x, wrong)

    class Noisy(sp.Defense):
        random = True

        def trace(self, v, ctx):
            return sp.Trace((sp.View("final", model(v + 0.01 * ctx.randn_like(v))),))

    assert "labels are shifted" in message(Noisy(), x, wrong)
    assert passes(Noisy(), x, y)

    class Failing(nn.Module):
        """Works once."""

        def __init__(self):
            super().__init__()
            self.calls = 0
            self.net = copy.deepcopy(model)

        def forward(self, v):
            self.calls += 1
            return self.net(v) if self.calls == 1 else self.net(v).roll(1, 1)

    assert passes(Failing(), x, y)
    assert "labels are shifted" in message(Failing(), x, wrong)

    class Adapting(sp.Defense):
        memory = "batch"

        def adapt(self, v, ctx):
            return Adapting()

        def trace(self, v, ctx):
            return sp.Trace((sp.View("final", model(v - v.mean(0) + v.mean(0))),))

    assert "labels are shifted" in message(Adapting(), x, wrong, batch_size=32)
    assert passes(Adapting(), x, y, batch_size=32)


def test_images_are_taken_from_all_parts_of_sorted_data():
    """The first class of sorted data is always misclassified: 10 % of the errors."""
    x, y = sp.load_data("digits", n=400)
    order = y.argsort(stable=True)
    wrong = torch.where(y == 0, 1, y)
    assert passes(net(), x[order], wrong[order])


def test_outputs_without_a_number_count_as_errors():
    x, y = DIGITS

    class Gaps(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, v):
            out = self.net(v)
            gap = (v == x[100]).flatten(1).all(1)
            return torch.where(gap[:, None], torch.nan, out)

    assert passes(Gaps(), x, y)


@pytest.mark.parametrize(
    ("space", "text"),
    [
        (sp.Linf(8), "Did you mean 8/255?"),
        (sp.Linf(1.0), "Did you mean 1/255?"),
        (sp.Linf(300), "allows every image"),
        (sp.L2(64), "Did you mean 64/255?"),
        (sp.L1(64), "no two images are farther apart than 64"),
        (sp.Linf(255, box=(0.0, 255.0)), "pixels are in [0, 255]"),
    ],
)
def test_a_radius_that_allows_every_image_stops_the_audit(space, text):
    assert text in unusual_radius(space, DIGITS.x).message


@pytest.mark.parametrize("space", [sp.Linf(0.99), sp.L2(7.9), sp.L1(63), sp.Linf(0)])
def test_a_smaller_radius_passes(space):
    assert unusual_radius(space, DIGITS.x) is None


def test_what_is_unusual_can_be_allowed_and_is_a_finding_then():
    x, y = DIGITS
    assert "Did you mean 8/255?" in message(net(), x, y, threat=sp.Linf(8))
    allowed = request(net(), x, (y + 1) % 10, threat=sp.Linf(8), allow_unusual=True)
    found = [s.message for s in probe_stage(allowed).findings if s.name is SymptomName.UNUSUAL]
    assert len(found) == 2
    assert "Did you mean 8/255?" in found[0]
    assert "Pass y - 1." in found[1]


def test_the_check_takes_few_passes():
    x, y = sp.load_data("digits", n=400)
    calls = []
    model = net()

    class Counted(nn.Module):
        def forward(self, v):
            calls.append(len(v))
            return model(v)

    from saddlepoint.audits.probes.probe_target import ProbeTarget
    from saddlepoint.audits.probes.sanity import unusual_accuracy
    from saddlepoint.audits.probes.traits import Traits

    asked = request(Counted(), x, y)
    target = ProbeTarget.of(asked.target, x, y, asked.threat.space)
    assert target.classes == 10
    calls.clear()
    assert unusual_accuracy(asked, target, Traits(())) is None
    assert sum(calls) == 128


def audited(x, y, radius, **settings):
    return sp.audit(NET, x, y, threat=sp.Linf(radius), adversaries=[APGD, SQUARE], **settings)


@pytest.mark.parametrize("n", [24, 64, 100, 500, 1000])
def test_a_net_that_falls_to_exactly_zero_is_not_overstated(n):
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(n, 16, generator=generator, dtype=torch.float64)
    y = NET(x).argmax(1)
    found = audited(x, y, 0.5)
    assert found.robust_accuracy == 0
    assert found.compared.standard == 0
    assert found.verdict is (Verdict.INCONCLUSIVE if n < 30 else Verdict.CREDIBLE), found.reasons


@pytest.mark.parametrize(
    ("n", "radius", "reason"),
    [
        (1, 0.01, "1 image is too few for a conclusion"),
        (29, 0.01, "29 images are too few"),
        (80, 0.0, "The radius is 0, so no perturbation was tested"),
    ],
)
def test_too_few_images_or_no_radius_are_inconclusive(n, radius, reason):
    found = audited(X[:n], Y[:n], radius)
    assert found.checklist[0].state is State.FAIL
    assert found.verdict is Verdict.INCONCLUSIVE
    assert reason in found.reasons[0]
    assert "enough was tested" in found.summary()


def test_without_a_correct_image_there_is_nothing_to_attack():
    found = audited(X, 1 - Y, 0.01, allow_unusual=True)
    assert found.clean_accuracy == 0
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "No clean image is classified correctly" in found.reasons[0]


def test_thirty_images_are_enough():
    found = audited(X[:30], Y[:30], 0.01)
    assert found.checklist[0].state is State.PASS
    assert found.verdict is Verdict.CREDIBLE, found.reasons
