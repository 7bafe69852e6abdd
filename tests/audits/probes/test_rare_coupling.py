"""A decision of the whole batch is found if it changes the outputs of unsure images only."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import saddlepoint as sp
from saddlepoint.audits.probes.traits import TraitName


class BatchExit(nn.Module):
    """Uses its first exit for the whole batch if one image is sure."""

    def __init__(self, per_image: bool = False) -> None:
        super().__init__()
        self.per_image = per_image

    def forward(self, x):
        score = 20 * (x.flatten(1).mean(1) - 0.5)
        first = torch.stack([score, -score], 1)
        last = torch.stack([score + 0.3, -score - 0.1], 1)
        sure = first.softmax(1).amax(1) > 0.9
        if self.per_image:
            return torch.where(sure[:, None], first, last)
        return first if sure.any() else last


def images():
    # Of 60 images only three in the second half are unsure.
    level = torch.where(torch.arange(60) % 2 == 0, 0.8, 0.2)
    level[[33, 46, 56]] = torch.tensor([0.52, 0.53, 0.48])
    x = level[:, None, None, None].expand(60, 1, 4, 4).clone()
    return x, (level < 0.5).long()


@pytest.mark.parametrize("per_image", [False, True])
def test_unsure_images_show_that_a_batch_decides(per_image):
    x, y = images()
    probed = sp.probe(BatchExit(per_image).eval(), x, y, threat=sp.Linf(0.05))
    assert (TraitName.COUPLED in probed) == (not per_image)
    if not per_image:
        assert "least sure images" in probed[TraitName.COUPLED].evidence
