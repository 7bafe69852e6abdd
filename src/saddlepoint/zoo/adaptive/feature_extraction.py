"""Outputs of named layers of a network, recorded by forward hooks that last for one pass."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from saddlepoint.zoo.adaptive.fitting import chunks
from saddlepoint.zoo.layers import check_called, check_called_once, check_known_layers, reaching

Visit = Callable[[str, Tensor, Tensor], Tensor]  # (name, layer input, output) -> new output


class LogitsAndFeatures(NamedTuple):
    """Result of one forward pass."""

    logits: Tensor  # [N, C]
    features: Tensor  # [N, ...] output of the recorded layer


def layer_outputs(net: nn.Module, layers: Sequence[str], x: Tensor) -> list[Tensor]:
    """Return the outputs of the named layers; the forward pass stops after the last of them.

    Args:
        net: Network.
        layers: Distinct names of `net.named_modules()`. If a layer is called more than once, its
            first output counts.
        x: [N, ...] input of the network.

    Returns:
        One tensor [N, ...] per name, in the given order.

    Raises:
        ValueError: If the forward pass does not call one of the layers.
    """
    recorder = _Recorder(stop_after=len(layers))
    with suppress(_AllRecorded), reaching(net, tuple(layers), recorder):
        net(x)
    check_called(layers, recorder.outputs)
    return [recorder.outputs[name] for name in layers]


def logits_and_features(net: nn.Module, layer: str, x: Tensor) -> LogitsAndFeatures:
    """Return the logits and the first output of the named layer from one forward pass.

    Raises:
        ValueError: If the forward pass does not call the layer.
    """
    recorder = _Recorder(stop_after=None)
    with reaching(net, (layer,), recorder):
        logits = net(x)
    check_called((layer,), recorder.outputs)
    return LogitsAndFeatures(logits, recorder.outputs[layer])


def example_layer_outputs(net: nn.Module, layers: Sequence[str], example: Tensor) -> list[Tensor]:
    """Return the outputs of the named layers for an example input, to size heads on top of them.

    A copy of the network in eval mode is run without gradients.

    Raises:
        ValueError: If a name is unknown, repeated or never reached, or if there are no names.
    """
    if not layers or len(set(layers)) < len(layers):
        raise ValueError(f"give at least one layer name and each name once, got {list(layers)}.")
    check_known_layers(net, layers)
    with torch.no_grad():
        return layer_outputs(copy.deepcopy(net).eval(), layers, example)


def visit_layers(net: nn.Module, layers: Sequence[str], visit: Visit, x: Tensor) -> Tensor:
    """Run the network and call `visit` after each named layer.

    Args:
        net: Network.
        layers: Names of `net.named_modules()`.
        visit: Called as visit(name, layer input, output); its result replaces the output.
        x: [N, ...] input of the network.

    Returns:
        Output of the network.

    Raises:
        ValueError: If the forward pass calls a named layer never or more than once.
    """
    visited: set[str] = set()

    def call(name: str, layer_input: Tensor, output: Tensor) -> Tensor:
        check_called_once(name, visited)
        visited.add(name)
        # A copy: a later layer that works in place must not change the visited tensor.
        return visit(name, layer_input, output).clone()

    with reaching(net, layers, call):
        result = net(x)
    check_called(layers, visited)
    return cast(Tensor, result)


class Features:
    """Feature extractor [N, ...] -> [N, D] of a network.

    The features are the input of the network's last linear layer, or the output of a named layer
    averaged over spatial positions or tokens.

    Args:
        net: Network.
        layer: Name of the layer, or None for the input of the last linear layer.

    Raises:
        ValueError: If the layer does not exist, or if there is no linear layer.
    """

    def __init__(self, net: nn.Module, layer: str | None = None) -> None:
        if layer is not None:
            check_known_layers(net, [layer])
        self.net = net
        self.layer = layer
        self._hooked_layer = layer if layer is not None else _last_linear_layer(net)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the features [N, D] of x [N, ...]."""
        recorded: list[Tensor] = []

        def record(name: str, layer_input: Tensor, output: Tensor) -> Tensor:  # noqa: ARG001
            recorded.append(output if self.layer is not None else layer_input)
            return output

        visit_layers(self.net, [self._hooked_layer], record, x)
        return _pooled(self._hooked_layer, recorded[0])

    def of(self, x: Tensor) -> Tensor:
        """Return the features [N, D] of a data set x [N, ...], computed without gradients."""
        with torch.no_grad():
            return torch.cat([self(part) for part in chunks(x)])


class _AllRecorded(Exception):  # noqa: N818
    """Stops a forward pass: the outputs of all requested layers are known."""


class _Recorder:
    """Hook that records the first output of each layer.

    Args:
        stop_after: Number of recorded layers after which the forward pass stops; None: never.
    """

    def __init__(self, *, stop_after: int | None) -> None:
        self.stop_after = stop_after
        self.outputs: dict[str, Tensor] = {}

    def __call__(self, name: str, layer_input: Tensor, output: Tensor) -> Tensor:  # noqa: ARG002
        self.outputs.setdefault(name, output)
        if len(self.outputs) == self.stop_after:
            raise _AllRecorded
        # A copy: a later layer that works in place must not change the recorded tensor.
        return output.clone()


def _pooled(name: str, features: Tensor) -> Tensor:
    """Average features over positions or tokens to [N, D]."""
    if not isinstance(features, Tensor) or features.ndim not in (2, 3, 4):
        found = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ValueError(
            f"layer {name!r} returns {found}; expected features [N, D], tokens [N, T, D] "
            "or feature maps [N, D, H, W]."
        )
    if features.ndim == 4:
        return features.mean((2, 3))
    return features.mean(1) if features.ndim == 3 else features


def _last_linear_layer(net: nn.Module) -> str:
    linear = [name for name, module in net.named_modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise ValueError(
            "the network has no linear layer to take features from. "
            "Give the name of another layer: layer='...'."
        )
    return str(linear[-1])
