"""Contrastive loss of augmented views, and the head that embeds them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def contrastive_loss(
    z: Tensor, negatives: Tensor | None = None, *, temperature: float = 0.2
) -> Tensor:
    """Compute the contrastive loss of the embedded views of each image.

    mean_v -log exp(s(z_v, z_first)) / sum exp(s(z_v, .)),  s(a, b) = cos(a, b) / temperature.
    The sum is over the other views of the image and the negatives. As in the released code, only
    the first other view is the target; further views are only in the denominator.

    Args:
        z: [V, N, E] embeddings of V views of N images.
        negatives: [M, E] embeddings of the negatives; None: all views of the other images.
        temperature: Temperature of the similarity.

    Returns:
        [N] loss.
    """
    z = nn.functional.normalize(z, dim=-1)
    views, rows = z.shape[:2]
    first = z[[1] + [0] * (views - 1)]  # view 1 for view 0, view 0 for all others
    target = (z * first).sum(-1)  # [V, N]
    if negatives is None:
        similarities = torch.einsum("vne,wme->vnwm", z, z).flatten(2)
        itself = torch.eye(views * rows, dtype=torch.bool, device=z.device).view(views, rows, -1)
    else:
        own = torch.einsum("vne,wne->vnw", z, z)
        similarities = torch.cat([own, z @ nn.functional.normalize(negatives, dim=-1).T], dim=2)
        itself = torch.zeros_like(similarities, dtype=torch.bool)
        itself[..., :views] = torch.eye(views, dtype=torch.bool, device=z.device)[:, None]
    total = (similarities / temperature).masked_fill(itself, -torch.inf).logsumexp(-1)
    return (total - target / temperature).mean(0)


def contrastive_head(features: int) -> nn.Module:
    """Build the head [N, features] -> [N, 16]: linear to 256, batch norm, ReLU, linear."""
    return nn.Sequential(
        nn.Linear(features, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 16)
    )
