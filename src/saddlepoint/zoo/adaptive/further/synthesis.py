"""Analysis by synthesis: the class is the one whose generator can make the image best."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from saddlepoint.defenses import Context, Defense, Trace, View
from saddlepoint.rng import Keys
from saddlepoint.zoo.adaptive.descent import adam, at_rest, slope
from saddlepoint.zoo.adaptive.learning import Batch, Phase, minimize, parts, refuse_data, seeded
from saddlepoint.zoo.nets.vae import VAE

_TRAINING = Phase(epochs=100, batch_size=64, rate=1e-3)
_UNLIKELY = 0.1  # of the points drawn as starts, the share farthest out is left out


class AnalysisBySynthesis(Defense):
    """Answers -scale w_y min_z E_y(z),  E_y(z) = (|x - G_y(z)|^2 + beta |z|^2 / 2) / pixels,  G_y the decoder of class y.

    -E_y is a lower bound of log p(x | y) up to constants, the posterior of z having unit variance (Schott et al. 2019, Sec. 3; the
    numbers are those of the released code). The search begins at the best of `starts` points, drawn from the prior once and for all
    by the seed, and takes `steps` steps of Adam, each ending within |z| <= reach: the released 50 iterations are 49 updates and the
    pass that answers. There the answer is a probability with a floor, which changes no label and is left out.

    "latent/t" is the answer after t updates, of all classes; without steps the nearest start decides. An update crosses the site
    "latent", where the state is the latent points and not the image: under `BPDA()` they are constants, and the gradient is that of
    E at the points found, which is the gradient of the minimum itself where the search has arrived. Exact gradients run through all
    of the search but the choice of the start, which has no slope. There is no static net.
    """

    def __init__(
        self,
        vaes: Sequence[VAE],
        *,
        starts: int = 8000,
        steps: int = 49,
        rate: float = 0.05,
        beta: float = 1.0,
        reach: float = 5.0,
        scale: float = 440.0,
        weights: Sequence[float] | None = None,  # w, one per class; None: all 1
        seed: int = 0,
    ) -> None:
        if starts < 1 or steps < 0 or min(rate, beta, reach, scale) <= 0:
            raise ValueError(
                "AnalysisBySynthesis needs starts >= 1, steps >= 0 and a positive rate, beta, reach and scale, got "
                f"starts={starts}, steps={steps}, rate={rate}, beta={beta}, reach={reach} and scale={scale}."
            )
        if (
            len(vaes) < 2
            or len({vae.latent for vae in vaes}) > 1
            or (weights is not None and len(weights) != len(vaes))
        ):
            raise ValueError(
                "AnalysisBySynthesis needs a VAE for each of at least two classes, as many latent dimensions in each, and a weight "
                f"for each, if any; got {[vae.latent for vae in vaes]} dimensions and weights={weights}."
            )
        if any(vae.training for vae in vaes):
            raise ValueError(
                "AnalysisBySynthesis was given a VAE in training mode, where rows share statistics. Call its eval()."
            )
        self.vaes = tuple(vaes)
        self.starts = starts
        self.steps = steps
        self.rate = rate
        self.beta = beta
        self.reach = reach
        self.scale = scale
        self.weights = None if weights is None else tuple(weights)
        self.seed = seed
        like = next(vaes[0].parameters())
        self.z = _likely(starts, vaes[0].latent, seed).to(like)  # [S, Z]
        with torch.no_grad():
            self.made = torch.stack(
                [torch.cat([vae.decode(z).flatten(1) for z in parts(self.z)]) for vae in vaes]
            )  # [C, S, pixels]

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        state = at_rest(self.nearest(x))  # [N, 3, C, Z]
        views = (
            [View("latent/0", self.logits(state[:, 0], x))]
            if ctx.keeps("latent/0") or not self.steps
            else []
        )
        for t in range(1, self.steps + 1):
            state = ctx.through("latent", partial(self._update, x, t), state)
            if ctx.keeps(f"latent/{t}") or t == self.steps:
                views.append(View(f"latent/{t}", self.logits(state[:, 0], x)))
        return Trace(tuple(views))

    def energies(self, z: Tensor, x: Tensor) -> Tensor:
        """[N, C]: E of each class at its own latent point, z [N, C, Z]."""
        made = torch.stack(
            [vae.decode(z[:, k]) for k, vae in enumerate(self.vaes)], dim=1
        )  # [N, C, ...]
        off = (made - x[:, None]).square().flatten(2).sum(2)
        return (off + self.beta / 2 * z.square().sum(2)) / x[0].numel()

    def logits(self, z: Tensor, x: Tensor) -> Tensor:
        """[N, C]: the answer if the search ended at z."""
        weights = 1.0 if self.weights is None else x.new_tensor(self.weights)
        return -self.scale * weights * self.energies(z, x)

    @torch.no_grad()
    def nearest(self, x: Tensor) -> Tensor:
        """[N, C, Z]: of the starts, for each class that of lowest energy."""
        wanted = x.flatten(1)
        prior = self.beta / 2 * self.z.square().sum(1)
        # Matrix products round by the height of the batch: where two starts are nearly as good, neighbors would pick.
        far = (
            torch.cdist(wanted, made, compute_mode="donot_use_mm_for_euclid_dist")
            for made in self.made
        )
        best = [(distance.square() + prior).argmin(1) for distance in far]
        return self.z[torch.stack(best, dim=1)]

    def _update(self, x: Tensor, t: int, state: Tensor) -> Tensor:
        moved = adam(state, slope(lambda z: self.energies(z, x).sum(1), state[:, 0]), t, self.rate)
        z = moved[:, 0]
        length = z.norm(dim=2, keepdim=True).clamp(min=self.reach)
        return torch.cat([(z * (self.reach / length))[:, None], moved[:, 1:]], dim=1)

    def fit(
        self, x: Tensor, y: Tensor, *, phase: Phase = _TRAINING, seed: int = 0
    ) -> AnalysisBySynthesis:
        """The same with VAEs that have learned the images of their class, by Adam; copies learn.

        |x - G(m + s n)|^2 + beta KL(N(m, s^2) | N(0, 1)), with m and s by the encoder and n ~ N(0, 1) (Kingma & Welling 2014).
        """
        refuse_data(x, y)
        missing = sorted(set(range(len(self.vaes))) - set(y.tolist()))
        if missing or int(y.amax()) >= len(self.vaes):
            raise ValueError(
                f"there is a VAE for each of the classes 0 to {len(self.vaes) - 1}, each of which needs images: "
                + (f"none are labeled {missing}." if missing else f"found label {int(y.amax())}.")
            )
        with seeded(seed):
            vaes = [
                self._learnt(vae, x[y == k], phase, seed + k) for k, vae in enumerate(self.vaes)
            ]
        return AnalysisBySynthesis(
            vaes, starts=self.starts, steps=self.steps, rate=self.rate, beta=self.beta, reach=self.reach, scale=self.scale,
            weights=self.weights, seed=self.seed,
        )  # fmt: skip

    def _learnt(self, vae: VAE, x: Tensor, phase: Phase, seed: int) -> VAE:
        vae = copy.deepcopy(vae).train()

        def losses(batch: Batch) -> Tensor:
            here = x[batch.rows]
            believed = vae.encode(x[batch.rows])
            noise = batch.keys.normal((vae.latent,), x.dtype)
            made = vae.decode(believed.mean + (believed.log_variance / 2).exp() * noise)
            return (made - here).square().flatten(1).sum(1) + self.beta * believed.divergence()

        minimize(
            losses, torch.optim.Adam(vae.parameters(), phase.rate), len(x), phase, seed, x.device
        )
        return vae.eval()


def _likely(count: int, latent: int, seed: int) -> Tensor:
    """[count, latent], float64: standard normal points, of some more the nearest to zero."""
    drawn = Keys.of(seed, torch.arange(round(count / (1 - _UNLIKELY)))).normal(
        (latent,), torch.float64
    )
    return drawn[drawn.norm(dim=1).argsort(stable=True)[:count].sort().values]
