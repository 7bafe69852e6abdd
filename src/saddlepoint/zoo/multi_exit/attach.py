"""Attach exits to an ordinary network, by the names of its layers."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn

from saddlepoint.zoo.layers import check_called, check_called_once, check_known_layers, reaching


def attach_exits(
    net: nn.Module,
    heads: Mapping[str, nn.Module | None],
    *,
    example: Tensor | None = None,
    freeze: bool = False,
) -> Attached:
    """Return a network with a head on each named layer.

    Example: `attach_exits(net, {"layer2": head, "layer3": None}, example=x[:1])`.

    Args:
        net: The network, [N, ...] -> [N, C].
        heads: A head per layer name, as in `net.named_modules()`. A head maps the output of its
            layer to logits [N, C]. None means the mean over the image, or over tokens, and one
            linear layer. Its size is taken from the layer's output for `example`.
        example: An input [N, ...]. It is required if a head is None. With it, the function checks
            at once that every layer is called and that all exits have the same classes.
        freeze: Train only the heads. They are attached to a copy of the network. The copy stays in
            eval mode, and its parameters have no gradient; the input still has one. Otherwise
            network and heads are trained together, and the network is the given one.

    Returns:
        A network that outputs the logits [N, C] of every exit, the network's own last.

    Raises:
        ValueError: No layer is named, a layer is unknown or not called exactly once, a head is
            missing without `example`, or the exits have different classes.
    """
    if not heads:
        raise ValueError("attach_exits needs at least one layer, such as {'layer3': None}.")
    check_known_layers(net, heads)
    missing = [name for name, head in heads.items() if head is None]
    if missing and example is None:
        raise ValueError(
            f"no head was given for {missing}: pass example=x[:1], an input from which their size "
            "is computed, or give the heads."
        )
    built = dict(heads)
    if example is not None and missing:
        built.update(_default_heads(net, missing, example))
    attached = Attached(
        copy.deepcopy(net) if freeze else net, cast(Mapping[str, nn.Module], built), frozen=freeze
    )
    if example is not None:
        with torch.no_grad():
            # A pass through a copy checks the exits and leaves modes and statistics unchanged.
            copy.deepcopy(attached).eval()(example)
    return attached


class Attached(nn.Module):
    """A network that outputs a list of logits: those of every head, then its own.

    The heads are in the order in which their layers are called.

    Args:
        net: The network.
        heads: A head per layer name.
        frozen: Keep `net` in eval mode and without gradients of its parameters.
    """

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
        """The number of exits."""
        return len(self.heads) + 1

    def train(self, mode: bool = True) -> Attached:
        """Set the mode of the heads, and that of the network unless it is frozen."""
        super().train(mode)
        if self.frozen:
            self.net.eval()
        return self

    def forward(self, x: Tensor) -> list[Tensor]:
        heads = dict(zip(self.names, self.heads, strict=True))
        exits = dict[str, Tensor]()

        def run_head(name: str, entering: Tensor, features: Tensor) -> None:  # noqa: ARG001
            check_called_once(name, exits)
            exits[name] = heads[name](features)

        with reaching(self.net, self.names, run_head):
            last = self.net(x)
        check_called(self.names, exits)
        return _check_classes({**exits, "the network itself": last})


def _check_classes(exits: Mapping[str, Tensor]) -> list[Tensor]:
    """Return the logits of all exits; raise if their shapes are not [N, C] with one C."""
    for name, logits in exits.items():
        if not isinstance(logits, Tensor) or logits.ndim != 2:
            found = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise ValueError(f"{name!r} outputs {found}, expected logits [N, C].")
    classes = {name: logits.shape[1] for name, logits in exits.items()}
    if len(set(classes.values())) > 1:
        raise ValueError(
            f"exits must have the same number of classes, found {classes}. "
            "Change the last layer of those heads."
        )
    return list(exits.values())


def _default_heads(net: nn.Module, names: list[str], example: Tensor) -> dict[str, nn.Module]:
    """Build linear heads; their sizes come from one pass of a copy in eval mode."""
    probe = copy.deepcopy(net).eval()
    features = dict[str, Tensor]()

    def record(name: str, entering: Tensor, out: Tensor) -> None:  # noqa: ARG001
        features[name] = out

    with torch.no_grad(), reaching(probe, names, record):
        logits = probe(example)
    check_called(names, features)
    classes = _check_classes({"the network itself": logits})[0].shape[1]
    return {name: linear_head(name, features[name], classes) for name in names}


def linear_head(name: str, features: Tensor, classes: int) -> nn.Module:
    """Return a head for a layer: the mean over positions and one linear layer.

    Args:
        name: The name of the layer, for the error message.
        features: An output of the layer: [N, D], tokens [N, T, D] or feature maps [N, D, H, W].
        classes: Number of classes.

    Raises:
        ValueError: The output has another shape.
    """
    if not isinstance(features, Tensor) or features.ndim not in (2, 3, 4):
        found = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ValueError(
            f"layer {name!r} outputs {found}, but default heads need [N, D], tokens [N, T, D] or "
            "feature maps [N, D, H, W]. Give it a head."
        )
    width = features.shape[1] if features.ndim == 4 else features.shape[-1]
    return nn.Sequential(
        Pooled(), nn.Linear(width, classes, device=features.device, dtype=features.dtype)
    )


class Pooled(nn.Module):
    """The mean over positions: [N, D, H, W] or tokens [N, T, D] -> [N, D]; [N, D] is unchanged."""

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == 4:
            return x.mean((2, 3))
        return x.mean(1) if x.ndim == 3 else x
