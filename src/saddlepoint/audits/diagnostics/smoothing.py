"""Randomized smoothing: a certificate for the smoothed model, which is another model than the one that is smoothed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy.stats import norm
from torch import Tensor

from saddlepoint.audits.statistics import clopper_pearson
from saddlepoint.rng import Keys

ABSTAINS = -1


@dataclass(frozen=True)
class SmoothingCertificate:
    """What is certified of g(x) = argmax_c P(f(x + sigma n) = c), n standard normal: not of f, and not of any attack's outcome."""

    answered: Tensor  # [N] class, or `ABSTAINS`
    radius: Tensor  # [N] Euclidean: within it g answers the same; 0 where it abstains
    right: Tensor  # [N] bool
    sigma: float
    alpha: float  # for each image the certificate is wrong with at most this probability

    def accuracy(self, radius: float = 0.0) -> float:
        """The share of images that g answers rightly in the whole Euclidean ball: certified accuracy."""
        return float((self.right & (self.radius >= radius)).double().mean())


def smoothing_certificate(
    net: Callable[[Tensor], Tensor],
    x: Tensor,
    y: Tensor,
    *,
    sigma: float,
    selection: int = 100,
    samples: int = 1000,
    alpha: float = 0.001,
    seed: int = 0,
) -> SmoothingCertificate:
    """CERTIFY of Cohen et al. 2019 (Sec. 3.2.2): guess the class by `selection` draws, count it in `samples` fresh ones.

    p_A is the lower end of a one-sided Clopper-Pearson interval at level 1 - alpha; if p_A > 1/2 the radius is
    sigma Phi^{-1}(p_A), Theorem 1 with p_B = 1 - p_A; else g abstains. Noise belongs to an image and is not clipped.
    """
    if sigma <= 0 or min(selection, samples) < 1 or not 0 < alpha < 1:
        raise ValueError(
            f"smoothing needs sigma > 0, at least one draw of either kind and 0 < alpha < 1, got sigma={sigma}, "
            f"selection={selection}, samples={samples}, alpha={alpha}."
        )
    keys = Keys.of(seed, torch.arange(len(x), device=x.device))
    guess = _counts(net, x, sigma, selection, keys.fold_in(1)).argmax(1)
    counts = _counts(net, x, sigma, samples, keys.fold_in(2)).gather(1, guess[:, None])[:, 0]
    lower = torch.tensor(
        [clopper_pearson(int(k), samples, level=1 - 2 * alpha).low for k in counts.tolist()],
        dtype=torch.float64,
    )
    sure = lower > 0.5
    radius = torch.where(
        sure, sigma * torch.from_numpy(norm.ppf(lower.clamp(0.5, 1 - 1e-12).numpy())), 0.0
    )
    answered = torch.where(sure, guess.cpu(), ABSTAINS)
    return SmoothingCertificate(answered, radius, answered == y.cpu(), sigma, alpha)


def _counts(
    net: Callable[[Tensor], Tensor], x: Tensor, sigma: float, draws: int, keys: Keys
) -> Tensor:
    """[N, C] how often each class is answered."""
    total: Tensor | None = None
    with torch.no_grad():
        for k in range(draws):
            logits = net(x + sigma * keys.fold_in(k).normal(tuple(x.shape[1:]), x.dtype))
            hit = torch.nn.functional.one_hot(logits.argmax(1), logits.shape[1])
            total = hit if total is None else total + hit
    assert total is not None, "at least one draw"
    return total
