"""Weights of AID-purifier's released discriminator."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from torch import Tensor

from saddlepoint.phrases import count
from saddlepoint.zoo.adaptive.aid_purifier import Discriminator

_ENCODER = re.compile(r"encoder_(\d+)\.block_seq\.(\d+)\.([01])\.(\w+)")
_DECISION = re.compile(r"block_seq\.(\d+)\.([01])\.(\w+)")
_CLASSIFIER = re.compile(r"net[1-4]\.")  # copies of the classifier's layers


def released_discriminator(
    state: Mapping[str, Tensor], layers: Sequence[str], *, off: Sequence[str] = ()
) -> Discriminator:
    """Build a discriminator from the state dict of the released one (Hwang et al. 2021).

    Its encoders are `encoder_1` to `encoder_4`, with 1 x 1 convolutions on pooled features instead
    of linear layers. The layers after the concatenation are `block_seq.1` and following; the last
    one is `fc`. It also contains copies of the classifier's layers, which are ignored. The sizes
    are read from the tensors.

    Args:
        state: The released state dict; names may begin with "module.".
        layers: Names of the classifier's layers, in the order of the encoders: the first
            convolution and the three blocks.
        off: Names of the layers that are switched off: the second and the fourth on CIFAR, the
            second and the third on SVHN.

    Returns:
        The discriminator in eval mode.

    Raises:
        ValueError: If a name is unknown, or if there are not as many encoders as `layers`.
    """
    renamed = {}
    for key, value in state.items():
        name = key.removeprefix("module.")
        if not _CLASSIFIER.match(name):
            renamed[_new_name(name)] = value.flatten(1) if value.ndim == 4 else value
    widths = [renamed[f"encoders.{k}.0.0.weight"] for k in _numbers(renamed, "encoders.")]
    if len(widths) != len(layers):
        raise ValueError(
            f"the weights have {count(len(widths), 'encoder')}, expected one for each of "
            f"{count(len(layers), 'layer')}: {list(layers)}."
        )
    discriminator = Discriminator(
        layers,
        [weight.shape[1] for weight in widths],
        off=off,
        width=widths[0].shape[0],
        before=len(_numbers(renamed, "encoders.0.")) - 1,
        after=len(_numbers(renamed, "decision.0.")),
    )
    discriminator = discriminator.to(widths[0])
    discriminator.load_state_dict(renamed)
    return discriminator.eval()


def _new_name(name: str) -> str:
    if found := _ENCODER.fullmatch(name):
        encoder, layer, part, tensor = found.groups()
        return f"encoders.{int(encoder) - 1}.{layer}.{part}.{tensor}"
    if found := _DECISION.fullmatch(name):
        layer, part, tensor = found.groups()
        return f"decision.0.{int(layer) - 1}.{part}.{tensor}"
    if name in ("fc.weight", "fc.bias"):
        return f"decision.1.{name.partition('.')[2]}"
    raise ValueError(
        f"{name!r} is not a tensor of the released discriminator, which has encoder_1 to "
        "encoder_4, block_seq and fc. Pass its state dict unchanged."
    )


def _numbers(names: Mapping[str, Tensor], prefix: str) -> list[int]:
    """Return the distinct numbers that follow the prefix, in order."""
    rest = (name[len(prefix) :] for name in names if name.startswith(prefix))
    return sorted({int(part.partition(".")[0]) for part in rest})
