"""Exits on an ordinary network, by the names of its layers."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn

from saddlepoint.zoo.layers import reaching, refuse_twice, refuse_unknown, refuse_unreached


def attach_exits(
    net: nn.Module,
    heads: Mapping[str, nn.Module | None],
    *,
    example: Tensor | None = None,
    freeze: bool = False,
) -> Attached:
    """The network with a head on each named layer: `attach_exits(net, {"layer2": head, "layer3": None}, example=x[:1])`.

    Names are those of `net.named_modules()`. A head maps what its layer gives to logits [N, C]; None stands for a mean over the
    picture, or over tokens, and one linear layer, sized by what the layer gives to `example`. An example also shows before any work
    that every layer is reached and that all exits have the same classes.

    With `freeze` only the heads are trained: they stand on a copy of the network that stays in eval mode and whose parameters take
    no gradient; the input still does. Without it network and heads are trained together, and the network is the one given.
    """
    if not heads:
        raise ValueError(
            "attach_exits was given no layer. Name at least one, such as {'layer3': None}."
        )
    refuse_unknown(net, heads)
    missing = [name for name, head in heads.items() if head is None]
    if missing and example is None:
        raise ValueError(
            f"no head was given for {missing}: pass example=x[:1], an input by which to size them, or give the heads."
        )
    built = dict(heads)
    if example is not None and missing:
        built.update(_default_heads(net, missing, example))
    attached = Attached(
        copy.deepcopy(net) if freeze else net, cast(Mapping[str, nn.Module], built), frozen=freeze
    )
    if example is not None:
        with torch.no_grad():
            copy.deepcopy(attached).eval()(
                example
            )  # of a copy: modes and statistics stay as they are
    return attached


class Attached(nn.Module):
    """A network whose forward gives the logits of every head, in the order in which their layers are reached, and its own last."""

    def __init__(
        self, net: nn.Module, heads: Mapping[str, nn.Module], *, frozen: bool = False
    ) -> None:
        super().__init__()
        self.net = net
        self.names = tuple(heads)
        self.heads = nn.ModuleList(heads.values())
        self.frozen = frozen
        if frozen:
            net.requires_grad_(False).eval()

    @property
    def exits(self) -> int:
        return len(self.heads) + 1

    def train(self, mode: bool = True) -> Attached:
        super().train(mode)
        if self.frozen:
            self.net.eval()
        return self

    def forward(self, x: Tensor) -> list[Tensor]:
        heads = dict(zip(self.names, self.heads, strict=True))
        exits = dict[str, Tensor]()

        def answer(name: str, given: Tensor, features: Tensor) -> None:  # noqa: ARG001
            refuse_twice(name, exits)
            exits[name] = heads[name](features)

        with reaching(self.net, self.names, answer):
            last = self.net(x)
        refuse_unreached(self.names, exits)
        return _of_equal_classes({**exits, "the network itself": last})


def _of_equal_classes(exits: Mapping[str, Tensor]) -> list[Tensor]:
    for name, logits in exits.items():
        if not isinstance(logits, Tensor) or logits.ndim != 2:
            found = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise ValueError(f"{name!r} answers {found}, expected logits [N, C].")
    classes = {name: logits.shape[1] for name, logits in exits.items()}
    if len(set(classes.values())) > 1:
        raise ValueError(
            f"exits must agree on the number of classes, found {classes}. Give those heads another last layer."
        )
    return list(exits.values())


def _default_heads(net: nn.Module, names: list[str], example: Tensor) -> dict[str, nn.Module]:
    """Sized by one pass, in eval mode, of a copy."""
    probe = copy.deepcopy(net).eval()
    features = dict[str, Tensor]()

    def note(name: str, given: Tensor, out: Tensor) -> None:  # noqa: ARG001
        features[name] = out

    with torch.no_grad(), reaching(probe, names, note):
        logits = probe(example)
    refuse_unreached(names, features)
    classes = _of_equal_classes({"the network itself": logits})[0].shape[1]
    return {name: linear_head(name, features[name], classes) for name in names}


def linear_head(name: str, features: Tensor, classes: int) -> nn.Module:
    """The mean of what a layer gives, and one linear layer."""
    if not isinstance(features, Tensor) or features.ndim not in (2, 3, 4):
        found = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ValueError(
            f"layer {name!r} gives {found}, but heads are made for [N, D], tokens [N, T, D] and pictures [N, D, H, W]. "
            "Give it a head."
        )
    width = features.shape[1] if features.ndim == 4 else features.shape[-1]
    return nn.Sequential(
        Pooled(), nn.Linear(width, classes, device=features.device, dtype=features.dtype)
    )


class Pooled(nn.Module):
    """[N, D, H, W] or tokens [N, T, D] -> [N, D]."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3)) if x.ndim == 4 else x.mean(1) if x.ndim == 3 else x
