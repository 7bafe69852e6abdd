"""Both discriminators of URejectron in Figure 1: which they are, and that each is measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

from saddlepoint.papers import EXPERIMENTS, Request
from saddlepoint.papers.registry import TRAINED_SCALES, Scale
from saddlepoint.papers.transductive import figure_1
from saddlepoint.papers.transductive.nets import HighPass
from saddlepoint.papers.transductive.scales import (
    PAPERS_DISCRIMINATOR,
    SELECTED_DISCRIMINATOR,
    SETTINGS,
)
from saddlepoint.zoo.nets import resnet
from saddlepoint.zoo.transductive import Distinguishing, RejectionCurve

DEPTHS = {"tiny": (1, 1), "small": (2, 2, 2, 2), "paper": (2, 2, 2, 2)}
WIDTHS = {"tiny": 4, "small": 8, "paper": 64}


def shapes(net: nn.Module) -> list[tuple[int, ...]]:
    """The shapes of the parameters."""
    return [tuple(one.shape) for one in net.parameters()]


@pytest.mark.parametrize("scale", TRAINED_SCALES)
def test_the_papers_discriminator_and_the_selected_one_are_both_there_and_marked(
    scale: Scale,
) -> None:
    signs = SETTINGS[scale].signs
    assert list(signs.discriminators) == [PAPERS_DISCRIMINATOR, SELECTED_DISCRIMINATOR]
    assert "the paper's" in PAPERS_DISCRIMINATOR
    assert "selected by its result" in SELECTED_DISCRIMINATOR
    papers, selected = (one.build() for one in signs.discriminators.values())
    channels = 1 if scale == "tiny" else 3
    same = resnet(
        DEPTHS[scale], WIDTHS[scale], in_channels=channels, classes=2, mean=(0,), std=(1,)
    )
    assert shapes(papers) == shapes(same)
    assert not any(isinstance(part, HighPass) for part in papers.modules())
    if scale != "tiny":  # its images are too small for the filter
        assert any(isinstance(part, HighPass) for part in selected.modules())
    if scale == "paper":
        assert signs.discriminators[PAPERS_DISCRIMINATOR] == Distinguishing()


def test_each_discriminator_is_measured_on_each_batch_under_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rejections are replaced by a number that belongs to the discriminator alone."""
    known = SETTINGS["tiny"].signs.discriminators
    shares = {id(training): k / 4 for k, training in enumerate(known.values(), 1)}

    def rejections(*arguments: object) -> figure_1.Rejections:
        share = shares[id(arguments[-1])]
        rates = (share, 0.0)  # at the thresholds 1/2 and 1
        curve = RejectionCurve((0.5, 1.0), rates, rates, (0.0, 0.0), (0.0, 0.0))
        return figure_1.Rejections(curve, rates)

    monkeypatch.setattr(figure_1, "rejections", rejections)
    table = EXPERIMENTS["transductive/figure-1"].run(Request(tmp_path)).tables[1]
    at_half = table.columns.index("threshold 1/2: normal rejected")
    found = [(row.labels[0], row.cells[at_half].mean) for row in table.rows]
    assert found == [(PAPERS_DISCRIMINATOR, 25.0)] * 3 + [(SELECTED_DISCRIMINATOR, 50.0)] * 3
