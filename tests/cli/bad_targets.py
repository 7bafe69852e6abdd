"""Targets that cannot be audited, each for one reason."""

from __future__ import annotations

import sys

import torch
from tests.cli.cli_targets import Linear
from torch import nn


class ChangedOutput(nn.Module):
    """A linear classifier with a function applied to its logits."""

    def __init__(self, change) -> None:
        super().__init__()
        self.net = Linear()
        self.change = change

    def forward(self, x):
        return self.change(self.net(x))


def raises():
    return {}["weights"]


def leaves():
    sys.exit(3)


def needs_arguments(depth, width=2):
    return Linear().eval()


def no_model():
    return {"net": Linear()}


def nothing():
    return None


def training():
    return nn.Sequential(Linear(), nn.Dropout())


def elsewhere():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).to("meta").eval()


def double():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).double().eval()


def half():
    return nn.Sequential(nn.Conv2d(1, 2, 8), nn.Flatten(), nn.Linear(2, 10)).half().eval()


def other_images():
    return nn.Sequential(nn.Flatten(), nn.Linear(99, 10)).eval()


def dictionary():
    return ChangedOutput(lambda z: {"first": z, "second": z}).eval()


def pair():
    return ChangedOutput(lambda z: (z, z)).eval()


def none():
    return ChangedOutput(lambda z: None).eval()


def labels():
    return ChangedOutput(lambda z: z.argmax(1)).eval()


def one_logit():
    return ChangedOutput(lambda z: z[:, :1]).eval()


def maps():
    return ChangedOutput(lambda z: z[:, :, None, None].expand(-1, -1, 2, 2)).eval()


def one_row():
    return ChangedOutput(lambda z: z[:1]).eval()


def few_classes():
    return ChangedOutput(lambda z: z[:, :4]).eval()


def no_number():
    return ChangedOutput(lambda z: z / 0 - z / 0).eval()


def on_meta():
    return ChangedOutput(lambda z: torch.empty(z.shape, device="meta")).eval()


def exploding():
    return ChangedOutput(lambda z: 1e30 * z * 1e30).eval()


def overwriting():
    return nn.Sequential(nn.ReLU(inplace=True), nn.Hardtanh(0, 0.5, inplace=True), Linear()).eval()
