"""Levels of pixels are found inside targets, wherever code computes them, and only there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.probing import probe_target
from torch import Tensor, nn

import saddlepoint as sp
from saddlepoint.audits.planning.suite import compose
from saddlepoint.audits.probes.traits import TraitName
from saddlepoint.evaluation import Threat

X = torch.rand(16, 2, 4, 4, generator=torch.Generator().manual_seed(0))
WEIGHT = torch.randn(32, 5, generator=torch.Generator().manual_seed(1))
THRESHOLDS = torch.linspace(0.3, 0.7, 32).view(2, 4, 4)
TABLE = torch.tensor([0.0, 0.2, 0.7, 1.0])
LINF = sp.Linf(0.1)


class Before(nn.Module):
    """A linear net after a function of the images."""

    def __init__(self, step: Callable[[Tensor], Tensor], weight: Tensor = WEIGHT) -> None:
        super().__init__()
        self.step = step
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        return self.step(x).flatten(1) @ self.weight


def thermometer(x: Tensor) -> Tensor:
    return (x[..., None] > torch.arange(4) / 4).float()


def thermometer_in_channels(x: Tensor) -> Tensor:
    return thermometer(x).permute(0, 1, 4, 2, 3).reshape(len(x), 8, 4, 4)


def by_numpy(x: Tensor) -> Tensor:
    return torch.from_numpy((x.detach().numpy() > 0.5).astype("float32"))


CODES = torch.cat([WEIGHT, WEIGHT.flip(0), -WEIGHT, WEIGHT.roll(3, 0)])
FOUND = [
    pytest.param(lambda x: (x > 0.5).float(), WEIGHT, 2, id="comparison"),
    pytest.param(lambda x: torch.where(x >= 0.5, 1.0, 0.0), WEIGHT, 2, id="where"),
    pytest.param(lambda x: ((x - 0.4) / 0.2 > 0.5) * 1.0, WEIGHT, 2, id="normalized first"),
    pytest.param(lambda x: (x * 8).round() / 8, WEIGHT, 9, id="rounding"),
    pytest.param(lambda x: TABLE[(x * 4).long().clamp(max=3)], WEIGHT, 5, id="table"),
    pytest.param(lambda x: (x.permute(0, 2, 3, 1) > 0.5).float(), WEIGHT, 2, id="channels last"),
    pytest.param(thermometer, CODES, 5, id="code last"),
    pytest.param(thermometer_in_channels, CODES, 5, id="code in channels"),
    pytest.param(lambda x: (x > THRESHOLDS).float(), WEIGHT, 2, id="a threshold per pixel"),
    pytest.param(by_numpy, WEIGHT, 2, id="numpy"),
]


def found_in(net: nn.Module):
    return probe_target(net.eval(), X, net(X).argmax(1), LINF)


@pytest.mark.parametrize(("step", "weight", "levels"), FOUND)
def test_levels_are_found_and_determine_the_outputs(
    step: Callable[[Tensor], Tensor], weight: Tensor, levels: int
) -> None:
    net = Before(step, weight)
    probed = found_in(net)
    found = probed.facts.levels
    assert found is not None
    assert len(found.levels) == levels
    assert "levels" in probed.facts.traits[TraitName.QUANTIZED].evidence
    options = found.levels.options(X, LINF)
    point = LINF.sample(X, sp.rng.Keys.of(0, torch.arange(16)))
    there = found.levels.options(point, sp.Linf(0.0)).clean
    moved = options.values(there).view_as(X)
    assert LINF.contains(moved, X).all()
    torch.testing.assert_close(net(moved), net(point))


def test_borders_are_exact() -> None:
    """A threshold t of `x > t` belongs to the lower level; the next number to the higher one."""
    found = found_in(Before(lambda x: (x > THRESHOLDS).float())).facts.levels
    assert found is not None
    thresholds = THRESHOLDS.flatten()
    assert torch.equal(found.levels.end[:, 0], thresholds)
    assert torch.equal(found.levels.start[:, 1], torch.nextafter(thresholds, thresholds + 1))


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(lambda x: x, id="plain"),
        pytest.param(lambda x: x.detach() + 0 * x, id="no gradient"),
        pytest.param(lambda x: x.detach() * (x > 0.5), id="a mask"),
        pytest.param(lambda x: ((x + x.roll(1, -1)) * 4).round() / 4, id="pairs of pixels"),
        pytest.param(lambda x: (x > x.mean((1, 2, 3), keepdim=True)).float(), id="own threshold"),
        pytest.param(lambda x: (x > 0.5).float() + x.detach() / 10, id="levels and pixels"),
    ],
)
def test_no_levels_are_found_where_outputs_depend_on_more(step: Callable[[Tensor], Tensor]) -> None:
    assert found_in(Before(step)).facts.levels is None


def test_a_plain_net_is_not_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("a plain net was examined")

    monkeypatch.setattr("saddlepoint.audits.probes.levels.find_codes", fail)
    assert found_in(Before(lambda x: x)).facts.levels is None


def test_a_target_with_levels_gets_a_search_over_them() -> None:
    net = Before(lambda x: (x > 0.5).float())
    probed = found_in(net)
    for budget, expected in (("quick", ["levels"]), ("standard", ["levels", "levels-t"])):
        choices = compose(probed.defense, Threat(LINF), budget, probed.facts)
        named = [choice for choice in choices if choice.name.startswith("levels")]
        assert [choice.name for choice in named] == expected
        assert all("2 levels within the radius (torch.gt)" in choice.reason for choice in named)
        assert all(choice.adversary.needs == "gradient" for choice in named)


def test_without_gradients_of_the_target_the_search_uses_scores() -> None:
    probed = found_in(Before(lambda x: torch.where(x > 0.5, 1.0, 0.0)))
    choices = compose(probed.defense, Threat(LINF), "standard", probed.facts)
    needs = {c.name: c.adversary.needs for c in choices if c.name.startswith("levels")}
    assert needs["levels"] == probed.defense.grants


@pytest.mark.parametrize("queries", [30, 60])
def test_the_query_limit_is_respected(queries: int) -> None:
    probed = found_in(Before(lambda x: (x > 0.5).float()))
    threat = Threat(LINF, queries=queries)
    for choice in compose(probed.defense, threat, "standard", probed.facts):
        if choice.name == "levels-t":
            assert choice.adversary.cost().forward <= queries


def test_score_access_does_not_grant_levels() -> None:
    probed = found_in(Before(lambda x: (x > 0.5).float()))
    threat = Threat(LINF, access="score")
    choices = compose(probed.defense, threat, "standard", probed.facts)
    assert not [choice for choice in choices if choice.name.startswith("levels")]
