"""Randomized smoothing: certifies the smoothed model, which is another model than its base."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy.special import ndtri
from torch import Tensor

from saddlepoint.audits.statistics import clopper_pearson
from saddlepoint.rng import Keys

ABSTAINS = -1


@dataclass(frozen=True)
class SmoothingCertificate:
    """Certified predictions of g(x) = argmax_c P(f(x + sigma n) = c), n standard normal.

    The certificate applies to g, neither to f nor to the outcome of an attack.
    """

    predicted: Tensor  # [N] class, or `ABSTAINS`
    radius: Tensor  # [N] Euclidean radius within which g predicts the same; 0 where it abstains
    correct: Tensor  # [N] bool
    sigma: float
    alpha: float  # the probability, per image, that the certificate is wrong, at most

    def accuracy(self, radius: float = 0.0) -> float:
        """Certified accuracy: the fraction of images that g classifies correctly in the whole ball.

        Args:
            radius: Euclidean radius of the ball; default: 0.
        """
        return float((self.correct & (self.radius >= radius)).double().mean())


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
    """CERTIFY of Cohen et al. 2019 (Sec. 3.2.2).

    `selection` draws select a class, `samples` other draws count it. p_A is the lower end of a
    one-sided Clopper-Pearson interval at level 1 - alpha. If p_A > 1/2, the radius is
    sigma Phi^{-1}(p_A) (Theorem 1 with p_B = 1 - p_A), else g abstains. Noise is drawn per image
    and not clipped.

    Args:
        net: the base classifier f, from images [N, ...] to logits [N, C].
        x: images, [N, ...].
        y: labels, [N].
        sigma: standard deviation of the noise.
        selection: draws that select the class; default: 100.
        samples: draws that count it; default: 1000.
        alpha: failure probability per image; default: 0.001.
        seed: random seed; default: 0.

    Raises:
        ValueError: an argument is out of range.
    """
    if sigma <= 0 or min(selection, samples) < 1 or not 0 < alpha < 1:
        raise ValueError(
            "smoothing needs sigma > 0, at least one draw for selection and for counting, and "
            f"0 < alpha < 1, got sigma={sigma}, selection={selection}, samples={samples}, "
            f"alpha={alpha}."
        )
    keys = Keys.of(seed, torch.arange(len(x), device=x.device))
    selected = _counts(net, x, sigma, selection, keys.fold_in(1)).argmax(1)
    counts = _counts(net, x, sigma, samples, keys.fold_in(2)).gather(1, selected[:, None])[:, 0]
    bounds = [clopper_pearson(int(k), samples, level=1 - 2 * alpha).low for k in counts.tolist()]
    lower = torch.tensor(bounds, dtype=torch.float64)
    certain = lower > 0.5
    quantile = torch.from_numpy(ndtri(lower.clamp(0.5, 1 - 1e-12).numpy()))
    radius = torch.where(certain, sigma * quantile, 0.0)
    predicted = torch.where(certain, selected.cpu(), ABSTAINS)
    return SmoothingCertificate(predicted, radius, predicted == y.cpu(), sigma, alpha)


def _counts(
    net: Callable[[Tensor], Tensor], x: Tensor, sigma: float, draws: int, keys: Keys
) -> Tensor:
    """[N, C] how often each class is predicted."""
    total: Tensor | None = None
    with torch.no_grad():
        for k in range(draws):
            logits = net(x + sigma * keys.fold_in(k).normal(tuple(x.shape[1:]), x.dtype))
            predicted = torch.nn.functional.one_hot(logits.argmax(1), logits.shape[1])
            total = predicted if total is None else total + predicted
    assert total is not None, "at least one draw"
    return total
