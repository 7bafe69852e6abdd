"""Data and targets that violate a rule are rejected with the fix, before any attack."""

from __future__ import annotations

import pytest
import torch
from tests.audits.probes.toy_targets import LINF, Net, X, net, probed
from torch import nn

import saddlepoint as sp
from saddlepoint.audits import TargetError

Y = torch.arange(12) % 3


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (X, torch.eye(3)[Y], "one-hot"),
        (X, Y.float(), "must be integers"),
        (X, Y[:5], "one label per image"),
        (X, Y - 1, r"must start at 0, but they start at -1\. Pass y \+ 1"),
        (X, Y + 1, "3 classes"),
        (X.where(X < 0.9, torch.nan), Y, "NaN"),
        (X * 255, Y, "normalize inside the model"),
        ((X * 255).byte(), Y, "/ 255"),
        (X.numpy(), Y, "torch tensors"),
        (X[:0], Y[:0], "there are no images"),
        (X[:0], Y, "there are no images"),
    ],
)
def test_bad_data_is_rejected_with_the_fix(x, y, message):
    with pytest.raises(TargetError, match=message):
        probed(net(), x, y)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (Net(after=nn.Dropout()), r"net\.eval\(\)"),
        (net(after=lambda z: (z, z)), "logits"),
        (net(after=lambda z: z[:, :, None].expand(-1, -1, 2)), "logits"),
        (net(after=lambda z: z[:, 0]), "logits"),
        (net(after=lambda z: z / 0), "NaN or infinite"),
        (net(before=lambda x: x.mul_(0.5)), "in place"),
        ("resnet18", "nn.Module"),
    ],
    ids=["training mode", "tuple", "three axes", "one logit", "not finite", "in place", "a string"],
)
def test_bad_targets_are_rejected_with_the_fix(target, message):
    with pytest.raises(TargetError, match=message):
        probed(target, X.clone(), Y)


@pytest.mark.parametrize("exits", [[], [None], [X[:, 0]]], ids=["none", "None", "no logits"])
def test_a_list_that_does_not_consist_of_logits_is_rejected(exits):
    with pytest.raises(TargetError, match="logits"):
        probed(net(after=lambda _: exits), X, Y)


def raises(error):
    def before(x):
        raise error

    return before


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (RuntimeError("expected all tensors on the same device"), "move the target there"),
        (RuntimeError("expected scalar type Half"), "convert the target"),
        (RuntimeError("shapes cannot be multiplied"), "images of another shape"),
        (KeyError("mean"), "fits the data"),
    ],
)
def test_an_error_of_the_target_is_reported_with_the_shape_of_the_images(error, advice):
    with pytest.raises(TargetError, match=r"\[12, 1, 4, 4\]") as caught:
        probed(net(before=raises(error)), X, Y)
    assert advice in str(caught.value)
    assert str(error) in str(caught.value)


def test_running_out_of_memory_is_no_error_of_the_target():
    with pytest.raises(MemoryError):
        probed(net(before=raises(MemoryError())), X, Y)


def test_labels_of_any_integer_type_and_images_from_inference_mode_are_accepted():
    with torch.inference_mode():
        x = X.clone()
    for dtype in (torch.uint8, torch.int16, torch.int32):
        assert probed(net(), x, Y.to(dtype)).findings == ()


def test_inference_mode_is_rejected_because_it_disables_gradients():
    with torch.inference_mode(), pytest.raises(TargetError, match=r"no_grad\(\) is fine"):
        probed(net(), X, Y)


def gives_up(x):
    """Fails on some points near the images, but not on other images."""
    if 0.08 < (x - X[: len(x)]).abs().amax() < 0.2:
        raise RuntimeError("no fixed point")
    return x


def test_an_error_at_attacked_points_comes_with_advice():
    with pytest.raises(Exception, match="no fixed point") as caught:
        sp.audit(net(before=gives_up), X, Y, threat=LINF, budget="quick")
    assert any("return NaN" in note for note in caught.value.__notes__)
