"""Models and data that break rules get a clear message before any attack runs."""

from __future__ import annotations

import pytest
import torch
from saddlepoint.audits.target.check import TargetError, check
from torch import nn

import saddlepoint as sp

X = torch.rand(12, 1, 4, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 3
LINF = sp.Linf(0.1)


class Net(nn.Module):
    """A small smooth net with three classes, and a hook for bad behavior."""

    def __init__(self, after=lambda z: z, before=lambda x: x):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 3, generator=torch.Generator().manual_seed(1)))
        self.before = before
        self.after = after

    def forward(self, x):
        return self.after(self.before(x).flatten(1) @ self.weight)


def net(**kwargs):
    return Net(**kwargs).eval()


def findings(target, x=X, y=Y):
    return {f.name: f for f in check(target, x, y, LINF).findings}


def test_a_good_net_passes_without_a_word():
    checked = check(net(), X, Y, LINF)
    assert checked.findings == ()
    assert (checked.classes, checked.defense.unit, checked.defense.random) == (3, "example", False)


@pytest.mark.parametrize(
    ("x", "y", "says"),
    [
        (X, torch.eye(3)[Y], "one-hot"),
        (X, Y.float(), "whole numbers"),
        (X, Y[:5], "one label per image"),
        (X, Y - 1, "negative"),
        (X, Y + 1, "3 classes"),
        (X.where(X < 0.9, torch.nan), Y, "NaN"),
        (X * 255, Y, "normalization inside the model"),
        ((X * 255).byte(), Y, "/ 255"),
        (X.numpy(), Y, "torch tensors"),
        (X[:0], Y[:0], "one label per image"),
    ],
)
def test_bad_data_is_refused_and_the_message_names_the_fix(x, y, says):
    with pytest.raises(TargetError, match=says):
        check(net(), x, y, LINF)


@pytest.mark.parametrize(
    ("target", "says"),
    [
        (Net(), r"net\.eval\(\)"),
        (net(after=lambda z: (z, z)), "logits"),
        (net(after=lambda z: z[:, :, None]), "logits"),
        (net(after=lambda z: z[:, 0]), "logits"),
        (net(after=lambda z: z / 0), "NaN or infinite"),
        (net(before=lambda x: x.mul_(0.5)), "in place"),
        ("resnet18", "nn.Module"),
    ],
    ids=["training mode", "tuple", "three axes", "one logit", "not finite", "in place", "a string"],
)
def test_bad_models_are_refused_and_the_message_names_the_fix(target, says):
    with pytest.raises(TargetError, match=says):
        check(target, X.clone(), Y, LINF)


def test_a_list_of_logits_is_taken_for_exits_and_said_to_be():
    checked = check(net(after=lambda z: [2 * z, z - z.flip(1)]), X, Y, LINF)
    assert isinstance(checked.defense, sp.MultiExit)
    assert [(f.name, f.level) for f in checked.findings] == [("several exits", "note")]
    torch.testing.assert_close(
        checked.defense.respond(X, sp.Context.seeded(0, len(X))),
        net(after=lambda z: z - z.flip(1))(X),
    )
    for wrong in ([], [None], [X[:, 0]]):
        with pytest.raises(TargetError, match="logits"):
            check(net(after=lambda _, wrong=wrong: wrong), X, Y, LINF)


def test_probabilities_are_found_and_attacked_through_their_logarithm():
    raw = net()
    soft = net(after=lambda z: z.softmax(1))
    checked = check(soft, X, Y, LINF)
    assert [f.name for f in checked.findings] == ["probabilities"]
    logits = checked.defense.respond(X, sp.Context.seeded(0, len(X)))
    torch.testing.assert_close(logits.softmax(1), raw(X).softmax(1))


def test_hidden_randomness_is_found_and_a_twin_without_it_is_not_accused():
    noisy = check(net(before=lambda x: x + 0.1 * torch.randn_like(x)), X, Y, LINF)
    assert noisy.defense.random
    assert [f.name for f in noisy.findings] == ["random answers"]


def test_hidden_randomness_becomes_a_function_of_the_coins_and_leaves_the_global_state_alone():
    defense = check(net(before=lambda x: x + 0.1 * torch.randn_like(x)), X, Y, LINF).defense
    state = torch.random.get_rng_state()
    first, again, other = (defense.respond(X, sp.Context.seeded(s, len(X))) for s in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(state, torch.random.get_rng_state())


def test_batch_statistics_are_found():
    assert "coupled rows" in findings(net(before=lambda x: x - x.mean(0)))
    assert check(net(before=lambda x: x - x.mean(0)), X, Y, LINF).defense.unit == "batch"


def test_a_cut_gradient_leaves_score_access_only_and_a_dead_one_is_a_serious_symptom():
    def elsewhere(x):
        return torch.from_numpy(
            x.numpy(force=True).round(1)
        )  # out of torch, where nobody can follow

    cut = check(net(before=elsewhere), X, Y, LINF)
    assert cut.defense.grants == "score"
    assert [(f.name, f.level) for f in cut.findings] == [("no gradient", "serious")]
    assert findings(net(before=lambda x: x * (x > 2)))["vanishing gradients"].level == "serious"


def test_functions_that_kill_gradients_are_led_around():
    hiding = {
        "torch.round": torch.round,
        "torch.detach": torch.Tensor.detach,
        "torch.gt": lambda x: (x > 0.5).float(),
    }
    for site, hides in hiding.items():
        checked = check(net(before=hides), X, Y, LINF)
        assert checked.around == (site,)
        assert checked.defense.grants == "gradient"
        assert {f.level for f in checked.findings} == {"warning"}


def test_a_callable_grants_scores_and_one_that_answers_with_labels_only_decisions():
    logits = net()
    assert check(lambda x: logits(x), X, Y, LINF).defense.grants == "score"
    assert check(lambda x: logits(x).argmax(1), X, Y, LINF).defense.grants == "decision"


class Declared(sp.Defense):
    def __init__(self, fn, **declared):
        self.fn = fn
        for name, value in declared.items():
            setattr(self, name, value)

    def trace(self, x, ctx):
        return sp.Trace((sp.View("final", self.fn(x, ctx)),))


PLAIN = net()
LIES = {
    "coins": (lambda x, ctx: PLAIN(x + 0.1 * ctx.randn_like(x)), {"random": True}, "random"),
    "batch mates": (lambda x, ctx: PLAIN(x - x.mean(0)), {"coupled": True}, "coupled"),
}


@pytest.mark.parametrize(("fn", "truth", "says"), LIES.values(), ids=LIES)
def test_a_defense_that_declares_the_truth_passes_and_a_liar_is_refused(fn, truth, says):
    assert check(Declared(fn, **truth), X, Y, LINF).findings == ()
    with pytest.raises(TargetError, match=says):
        check(Declared(fn), X, Y, LINF)


def test_a_defense_must_draw_its_randomness_from_the_context():
    with pytest.raises(TargetError, match="same coins"):
        check(
            Declared(lambda x, ctx: PLAIN(x + 0.1 * torch.randn_like(x)), random=True), X, Y, LINF
        )


def test_labels_of_any_whole_type_and_images_made_in_inference_mode_are_no_reason_to_see_no_gradient():
    with torch.inference_mode():
        x = X.clone()
    for y in (Y.to(torch.uint8), Y.to(torch.int16), Y.int()):
        assert check(net(), x, y, LINF).findings == ()


def test_inference_mode_is_refused_where_it_would_hide_every_gradient():
    with torch.inference_mode(), pytest.raises(TargetError, match=r"no_grad\(\) is fine"):
        check(net(), X, Y, LINF)


def test_batch_statistics_are_found_behind_a_callable_too():
    centerd = net(before=lambda x: x - x.mean(0))
    checked = check(lambda x: centerd(x), X, Y, LINF)
    assert [f.name for f in checked.findings] == ["coupled rows", "no gradient access"]
    assert checked.defense.unit == "batch"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_noise_is_found_behind_the_rounding_of_half_precision(dtype):
    noisy = net(after=lambda z: (z + 0.5 * torch.randn_like(z)).to(dtype))
    assert check(noisy, X, Y, LINF).defense.random
    assert not check(net(after=lambda z: z.to(dtype)), X, Y, LINF).defense.random


def test_a_net_declared_random_is_not_told_to_declare_its_rows_coupled():
    noisy = sp.Plain(net(before=lambda x: x + 0.1 * torch.randn_like(x)), random=True)
    assert check(noisy, X, Y, LINF).findings == ()


def gives_up(x):
    if 0.08 < (x - X[: len(x)]).abs().amax() < 0.2:  # other images are answered
        raise RuntimeError("no fixed point")
    return x


def test_a_net_that_fails_on_points_of_attacks_is_told_what_to_answer_instead():
    with pytest.raises(Exception, match="no fixed point") as caught:
        sp.audit(net(before=gives_up), X, Y, threat=LINF, budget="quick")
    assert any("return NaN" in note for note in caught.value.__notes__)
