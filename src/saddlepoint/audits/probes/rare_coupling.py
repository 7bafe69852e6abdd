"""Whether images at which the target is unsure have other outputs alone than in a batch.

A decision of the whole batch, such as "exit if one image is sure", changes few outputs, and those
of the first images may not be among them. It changes the outputs of images that are unsure.
"""

from __future__ import annotations

import torch
from torch import Tensor

from saddlepoint.audits.probes.probe_target import ProbeTarget
from saddlepoint.audits.probes.traits import TraitName, Traits, present
from saddlepoint.audits.target.admission import TargetError
from saddlepoint.audits.target.rounding import alike, difference
from saddlepoint.phrases import count

_IMAGES = 128  # most images of the batch, from all parts of the data
_UNSURE = 8
# Outputs of these targets differ for other reasons, or are known to depend on the batch.
_OTHER_REASONS = (
    TraitName.COUPLED,
    TraitName.ROW_ORDER,
    TraitName.BATCH_SIZE,
    TraitName.RANDOM,
    TraitName.STATE,
    TraitName.CHANGES_ITSELF,
)


def with_rare_coupling(
    target: ProbeTarget, traits: Traits, images: Tensor, batch_size: int = _IMAGES
) -> Traits:
    """The traits, with `coupled` if one of the least sure images has another output alone.

    Args:
        target: the target.
        traits: its traits so far.
        images: all images, [N, ...].
        batch_size: most images per call; default 128.
    """
    if any(name in traits for name in _OTHER_REASONS) or target.adapts or target.uncontrolled:
        return traits
    if target.defense.unit != "example":
        return traits
    n = min(len(images), _IMAGES, batch_size)
    ids = torch.linspace(0, len(images) - 1, n).round().long().to(images.device)
    x = images[ids].detach()
    try:
        together = target.spread_answers(x, ids)
        top = together.double().topk(min(2, together.shape[1]), dim=1).values
        unsure = (top[:, 0] - top[:, -1]).argsort()[:_UNSURE]
        alone = torch.cat(
            [target.fresh_copy().query(x[[row]], ids=ids[[row]]) for row in unsure.tolist()]
        )
    except (TargetError, MemoryError):
        return traits  # other checks explain it, or use fewer images
    if alike(together[unsure], alone):
        return traits
    evidence = (
        f"of the {count(len(unsure), 'least sure image')} of {count(n, 'image')}, without other "
        f"images: {difference(together[unsure], alone)}"
    )
    coupled = present(TraitName.COUPLED, evidence, declared=traits[TraitName.COUPLED].declared)
    found = (coupled if trait.name is TraitName.COUPLED else trait for trait in traits)
    return Traits(tuple(found))
