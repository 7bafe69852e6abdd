"""Analysis by synthesis: the generative model that reproduces the image best gives the class."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from saddlepoint.defenses import Context, Defense, Trace, View
from saddlepoint.rng import Keys
from saddlepoint.zoo.adaptive.fitting import Batch, Phase, chunks, minimize, seeded
from saddlepoint.zoo.adaptive.gradient_steps import adam_step, initial_adam_state, input_gradient
from saddlepoint.zoo.adaptive.validation import require_eval_mode, require_labeled_data
from saddlepoint.zoo.nets.vae import VAE

_TRAINING = Phase(epochs=100, batch_size=64, rate=1e-3)
_DISCARDED = 0.1  # fraction of the drawn starting points, the farthest from zero, that is dropped


class AnalysisBySynthesis(Defense):
    """Search for each class the latent point that reproduces the image best.

    logits_y = -scale w_y min_z E_y(z),  E_y(z) = (|x - G_y(z)|^2 + beta |z|^2 / 2) / pixels.

    G_y is the decoder of class y. Up to constants, -E_y is a lower bound of log p(x | y) for a
    posterior of z with unit variance (Schott et al. 2019, Sec. 3; the numbers are those of the
    released code). The minimization begins at the best of `starts` points, drawn once from the
    prior, and takes `steps` steps of Adam, each projected to |z| <= max_norm. The released 50
    iterations are 49 updates and the pass that returns the output. There the output is a
    probability with a lower bound, which changes no label and is omitted here.

    The view "latent/t" has the logits of all classes after t updates; with steps=0 the best
    starting point decides. Each update passes through the site "latent", where the state is the
    latent points and not the image. Under `BPDA()` they are constants, and the gradient is that of
    E at the final points, which equals the gradient of the minimum if the search has converged.
    Exact gradients flow through the whole search except the choice of the starting point, which
    has no gradient. There is no static network.

    Args:
        vaes: One VAE per class in eval mode, at least two, with equal latent dimensions.
        starts: Number of starting points.
        steps: Number of updates.
        rate: Learning rate of Adam.
        beta: Weight of the prior.
        max_norm: Largest norm of a latent point.
        scale: Factor of the logits.
        weights: One factor w per class; None: all 1.
        seed: Seed of the starting points.
    """

    def __init__(
        self,
        vaes: Sequence[VAE],
        *,
        starts: int = 8000,
        steps: int = 49,
        rate: float = 0.05,
        beta: float = 1.0,
        max_norm: float = 5.0,
        scale: float = 440.0,
        weights: Sequence[float] | None = None,
        seed: int = 0,
    ) -> None:
        if starts < 1 or steps < 0 or min(rate, beta, max_norm, scale) <= 0:
            raise ValueError(
                "AnalysisBySynthesis needs starts >= 1, steps >= 0 and a positive rate, beta, "
                f"max_norm and scale, got starts={starts}, steps={steps}, rate={rate}, "
                f"beta={beta}, max_norm={max_norm} and scale={scale}."
            )
        _require_vaes(vaes, weights)
        self.vaes = tuple(vaes)
        self.starts = starts
        self.steps = steps
        self.rate = rate
        self.beta = beta
        self.max_norm = max_norm
        self.scale = scale
        self.weights = None if weights is None else tuple(weights)
        self.seed = seed
        like = next(vaes[0].parameters())
        self.start_points = _prior_samples(starts, vaes[0].latent, seed).to(like)  # [S, Z]
        self.start_images = torch.stack(
            [_decoded(vae, self.start_points) for vae in vaes]
        )  # [C, S, pixels]

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        """Return the logits after every update of the latent points."""
        state = initial_adam_state(self.best_starts(x))  # [N, 3, C, Z]
        views = []
        if ctx.keeps("latent/0") or not self.steps:
            views.append(View("latent/0", self.logits(state[:, 0], x)))
        for t in range(1, self.steps + 1):
            state = ctx.through("latent", partial(self._update, x, t), state)
            if ctx.keeps(f"latent/{t}") or t == self.steps:
                views.append(View(f"latent/{t}", self.logits(state[:, 0], x)))
        return Trace(tuple(views))

    def energies(self, z: Tensor, x: Tensor) -> Tensor:
        """Return E_y [N, C] of each class at its own latent point.

        Args:
            z: [N, C, Z] latent points.
            x: [N, ...] images.
        """
        decoded = [vae.decode(z[:, k]) for k, vae in enumerate(self.vaes)]
        generated = torch.stack(decoded, dim=1)  # [N, C, ...]
        distance = (generated - x[:, None]).square().flatten(2).sum(2)
        return (distance + self.beta / 2 * z.square().sum(2)) / x[0].numel()

    def logits(self, z: Tensor, x: Tensor) -> Tensor:
        """Return the logits [N, C] for a search that ends at z [N, C, Z]."""
        weights = 1.0 if self.weights is None else x.new_tensor(self.weights)
        return -self.scale * weights * self.energies(z, x)

    @torch.no_grad()
    def best_starts(self, x: Tensor) -> Tensor:
        """Return the starting point of lowest energy for each class, [N, C, Z]."""
        target = x.flatten(1)
        prior = self.beta / 2 * self.start_points.square().sum(1)
        # Rounding in matrix products depends on the batch size. If two starting points are nearly
        # equally good, the choice would depend on the other examples of the batch.
        distances = (
            torch.cdist(target, images, compute_mode="donot_use_mm_for_euclid_dist")
            for images in self.start_images
        )
        best = [(distance.square() + prior).argmin(1) for distance in distances]
        return self.start_points[torch.stack(best, dim=1)]

    def _update(self, x: Tensor, t: int, state: Tensor) -> Tensor:
        grad = input_gradient(lambda z: self.energies(z, x).sum(1), state[:, 0])
        moved = adam_step(state, grad, t, self.rate)
        z = moved[:, 0]
        norm = z.norm(dim=2, keepdim=True).clamp(min=self.max_norm)
        return torch.cat([(z * (self.max_norm / norm))[:, None], moved[:, 1:]], dim=1)

    def fit(
        self, x: Tensor, y: Tensor, *, phase: Phase = _TRAINING, seed: int = 0
    ) -> AnalysisBySynthesis:
        """Train copies of the VAEs with Adam, each on the images of its class.

        The loss is |x - G(m + s n)|^2 + beta KL(N(m, s^2) | N(0, 1)), with m and s from the encoder
        and n ~ N(0, 1) (Kingma & Welling 2014).

        Args:
            x: [M, ...] training images.
            y: [M] labels; every class needs images.
            phase: Epochs, batch size and learning rate.
            seed: Seed of the minibatches and all noise.

        Returns:
            A new defense with the trained VAEs.

        Raises:
            ValueError: If a class has no images or a label has no VAE.
        """
        require_labeled_data(x, y)
        self._require_classes(y)
        with seeded(seed):
            vaes = [
                self._fit_vae(vae, x[y == k], phase, seed + k) for k, vae in enumerate(self.vaes)
            ]
        return AnalysisBySynthesis(
            vaes,
            starts=self.starts,
            steps=self.steps,
            rate=self.rate,
            beta=self.beta,
            max_norm=self.max_norm,
            scale=self.scale,
            weights=self.weights,
            seed=self.seed,
        )

    def _require_classes(self, y: Tensor) -> None:
        count = len(self.vaes)
        missing = sorted(set(range(count)) - set(y.tolist()))
        if missing:
            raise ValueError(
                f"fit needs images of each of the classes 0 to {count - 1}, "
                f"but no image is labeled {missing}."
            )
        largest = int(y.amax())
        if largest >= count:
            raise ValueError(
                f"there are VAEs for the classes 0 to {count - 1}, found label {largest}."
            )

    def _fit_vae(self, vae: VAE, x: Tensor, phase: Phase, seed: int) -> VAE:
        vae = copy.deepcopy(vae).train()
        optimizer = torch.optim.Adam(vae.parameters(), phase.rate)

        def losses(batch: Batch) -> Tensor:
            images = x[batch.rows]
            posterior = vae.encode(images)
            noise = batch.keys.normal((vae.latent,), x.dtype)
            generated = vae.decode(posterior.mean + (posterior.log_variance / 2).exp() * noise)
            distance = (generated - images).square().flatten(1).sum(1)
            return distance + self.beta * posterior.divergence()

        minimize(losses, optimizer, len(x), phase, seed, x.device)
        return vae.eval()


def _require_vaes(vaes: Sequence[VAE], weights: Sequence[float] | None) -> None:
    dimensions = [vae.latent for vae in vaes]
    if (
        len(vaes) < 2
        or len(set(dimensions)) > 1
        or (weights is not None and len(weights) != len(vaes))
    ):
        raise ValueError(
            "AnalysisBySynthesis needs one VAE for each of at least two classes, with equal latent "
            "dimensions, and one weight for each VAE or weights=None, "
            f"got latent dimensions {dimensions} and weights={weights}."
        )
    for vae in vaes:
        require_eval_mode(vae, role="VAE", owner="AnalysisBySynthesis")


@torch.no_grad()
def _decoded(vae: VAE, z: Tensor) -> Tensor:
    """Return the flattened images [S, pixels] of latent points z [S, Z]."""
    return torch.cat([vae.decode(part).flatten(1) for part in chunks(z)])


def _prior_samples(count: int, latent: int, seed: int) -> Tensor:
    """Return standard normal points [count, latent], float64.

    More points are drawn than needed, and those farthest from zero are dropped.
    """
    keys = Keys.of(seed, torch.arange(round(count / (1 - _DISCARDED))))
    points = keys.normal((latent,), torch.float64)
    return points[points.norm(dim=1).argsort(stable=True)[:count].sort().values]
