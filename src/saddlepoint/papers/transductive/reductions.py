"""The settings of DANN and TADV at a scale, each with the paper's value if it is another."""

from __future__ import annotations

from torch import nn

from saddlepoint.papers.transductive.nets import recipes
from saddlepoint.papers.transductive.scales import SETTINGS, DANNSetting, TADVSetting
from saddlepoint.training import HalfAdversarial, Recipe

_PAPER = SETTINGS["paper"]


def dann_settings(setting: DANNSetting) -> str:
    """Describe a setting of DANN: "rounds 3 of 10" if the paper has 10, "rounds 10" if equal."""
    paper = next((one for one in _PAPER.dann if one.data == setting.data), _PAPER.dann[0])
    ours = setting.training
    theirs = paper.training
    return _listed(
        _of("labeled images", setting.labeled, paper.labeled),
        _of("test images", setting.images, paper.images),
        _of("channels", _channels(ours.build()), _channels(theirs.build())),
        _of("epochs", ours.epochs, theirs.epochs),
        _of("batch size", ours.batch_size, theirs.batch_size),
        _of("rounds", setting.rounds, paper.rounds),
        _of("PGD steps", setting.attack.steps, paper.attack.steps),
    )


def tadv_settings(setting: TADVSetting, recipe: Recipe) -> str:
    """Describe a setting of TADV and the recipe of its networks, as `dann_settings` does."""
    paper = next((one for one in _PAPER.tadv if one.data == setting.data), _PAPER.tadv[0])
    theirs = recipes("paper")[f"{paper.data} tadv"]
    return _listed(
        _of("sources", setting.sources, paper.sources),
        _of("test images", setting.images, paper.images),
        _of("training images", recipe.n, theirs.n),
        _of("channels", _channels(recipe.net()), _channels(theirs.net())),
        _of("epochs", recipe.epochs, theirs.epochs),
        _of("training attack steps", _attack_steps(recipe), _attack_steps(theirs)),
        _of("PGD steps", setting.attack.steps, paper.attack.steps),
    )


def _listed(*parts: str) -> str:
    return f"settings (n of N: the paper has N): {', '.join(parts)}"


def _of(label: str, ours: int | None, paper: int | None) -> str:
    """Format both values; None: all."""
    mine, theirs = ("all" if value is None else str(value) for value in (ours, paper))
    return f"{label} {mine}" if mine == theirs else f"{label} {mine} of {theirs}"


def _channels(net: nn.Module) -> int:
    """Output channels of the first convolution."""
    return next(one.out_channels for one in net.modules() if isinstance(one, nn.Conv2d))


def _attack_steps(recipe: Recipe) -> int:
    assert isinstance(recipe.method, HalfAdversarial)
    return recipe.method.attack.steps
