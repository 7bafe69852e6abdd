"""Effects of the places where the multi-exit experiments differ from the paper.

    python -m benchmarks.multi_exit_differences --out benchmarks/records/multi-exit-differences.json
    python -m benchmarks.multi_exit_differences \\
        --out benchmarks/records/multi-exit-differences.json \\
        --page docs/results/differences-multi-exit.md

Measured on the embedded network `digits-exits` (four exits), radius 0.15, the first 100 test digits
for accuracies and the next 100 for the game, seed 0, one thread.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import torch
from benchmarks.peer_accuracy import write
from torch import Tensor

from saddlepoint import zoo
from saddlepoint.attacks.aims import loss_of_mean
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf, Radii
from saddlepoint.data import load_data
from saddlepoint.defenses import Confident, LowEntropy, MultiExit
from saddlepoint.defenses.gates import exit_logits
from saddlepoint.evaluation import Adversary, CleanCopies
from saddlepoint.evaluation.bootstrap import mean_of
from saddlepoint.evaluation.referee import play
from saddlepoint.evaluation.threat import Threat
from saddlepoint.games.exit_adversaries import OnExits
from saddlepoint.games.exit_attacks import ATTACKS, lafeat, partial_attack
from saddlepoint.games.exit_game import columns_of, exit_game
from saddlepoint.games.exit_views import with_strategy
from saddlepoint.games.payoffs import ExitGame
from saddlepoint.papers.budgets import AutoAttackBudget
from saddlepoint.papers.multi_exit.experiment import aimer_attack
from saddlepoint.papers.multi_exit.scales import EoTPGD, PartialPGD

N = 100
THREAT = Threat(Linf(0.15))
PGD_20 = PGD(20, Radii(1 / 4))
STATIC = (3,)  # the defender of the first rows of Table 1


@dataclass(frozen=True)
class Effect:
    """One difference with its effect; accuracies in percent."""

    point: str
    paper: str  # the paper or its references
    ours: str
    measured: str  # what both numbers are
    paper_accuracy: float
    our_accuracy: float
    low: float  # 95 % interval of ours minus theirs, on the same images
    high: float

    @classmethod
    def of(
        cls, point: str, paper: str, ours: str, measured: str, theirs: Tensor, found: Tensor
    ) -> Effect:
        """The effect from the probabilities [N] of correct predictions on the same images."""
        change = mean_of(found - theirs)
        accuracies = (100 * float(values.mean()) for values in (theirs, found))
        interval = (100 * change.low, 100 * change.high)
        return cls(point, paper, ours, measured, *accuracies, *interval)


class Bench:
    """The network, its images and its game."""

    def __init__(self) -> None:
        self.base = MultiExit(zoo.load("digits-exits"))
        images = load_data("digits", split="test", n=2 * N)
        self.x = images.x[:N]
        self.y = images.y[:N]
        self.game: ExitGame = exit_game(
            self.base, images.x[N:], images.y[N:], threat=THREAT, attack=PGD(10, Radii(1 / 4))
        )

    def correct(self, attack: Adversary, weights: Tensor) -> Tensor:
        """The probability [N] that a mixed strategy [D] is correct under an attack."""
        columns = columns_of(self.game.subsets)
        episode = play(self.base, attack, self.x, self.y, THREAT, answers=columns)
        return weights @ episode.correct.double()


def main() -> None:
    """Measure the effects, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="record to write or to read")
    parser.add_argument("--page", type=Path, help="page to write from the record")
    arguments = parser.parse_args()
    if arguments.page:
        found = json.loads(arguments.out.read_text())["effects"] if arguments.out.exists() else []
        arguments.page.write_text(page(found))
        return
    torch.set_num_threads(1)
    record = {
        "command": f"python -m benchmarks.multi_exit_differences --out {arguments.out}",
        "torch": version("torch"),
        "python": platform.python_version(),
        "n": N,
        "effects": [asdict(effect) for effect in effects(Bench())],
    }
    write(arguments.out, record)


def effects(bench: Bench) -> Iterator[Effect]:
    """All measured differences."""
    yield from _attacks(bench)
    yield _gates(bench)


def _attacks(bench: Bench) -> Iterator[Effect]:
    static = bench.game.one_hot(STATIC)
    drawn = (bench.game.one_hot((3,)) + bench.game.one_hot((4,))) / 2
    pgd = PartialPGD(PGD_20)
    yield Effect.of(
        "EoT-PGD-20",
        "not defined in the main text; two gradients are averaged in common code",
        "AIMER attacks the expected loss of the defender's strategy, exactly",
        "a defender that draws exit 3 or 4, under AIMER",
        bench.correct(aimer_attack(bench.game, drawn, pgd), drawn),
        bench.correct(aimer_attack(bench.game, drawn, EoTPGD(PGD_20)), drawn),
    )
    yield Effect.of(
        "LAFIT",
        "LAFIT, whose code is not public (here PGD-100 instead)",
        "LAFEAT, its earlier version, with the other exits as latent heads (20 steps)",
        "exit 3, matched attack",
        bench.correct(ATTACKS["pgd-100"](STATIC), static),
        bench.correct(lafeat(STATIC, 4, steps=20, betas=(0.0, 0.3, 0.6), targets=0), static),
    )
    reduced = AutoAttackBudget(10, 1, 50).attack()
    everything = (1, 2, 3, 4)
    yield Effect.of(
        "output of AutoAttack",
        "its published code returns the clean image where the attack fails",
        "the point of highest loss (10 steps, 1 target, 50 queries)",
        "exit 3 under the attack on the mean of all exits",
        bench.correct(OnExits(CleanCopies(reduced), everything), static),
        bench.correct(OnExits(reduced, everything), static),
    )
    both = bench.game.one_hot((3, 4))
    yield Effect.of(
        "loss of a partial attack",
        "the mean of the losses of the exits (Eq. 4), which is our default",
        "the loss of the mean logits, which the defender uses, as an option",
        "exits 3+4, matched attack",
        bench.correct(pgd((3, 4)), both),
        bench.correct(partial_attack((3, 4), PGD_20, aim=loss_of_mean), both),
    )


def _gates(bench: Bench) -> Effect:
    """Dynamic inference by entropy, whose rule is released, and by confidence, which is a guess."""
    held_out = load_data("digits", split="train", n=300)
    logits = exit_logits(bench.base, held_out.x)
    attack = PartialPGD(PGD_20)((1, 2, 3, 4))
    found = []
    for gate in (LowEntropy.calibrated(logits), Confident.calibrated(logits)):
        gated = with_strategy(bench.base, gate)
        episode = play(gated, attack, bench.x, bench.y, THREAT)
        found.append(episode.correct.double().squeeze(0))
    return Effect.of(
        "rule of the dynamic inference [3]",
        "not public (here the entropy rule of [16] instead)",
        "the confidence rule of MSDNet, a guess",
        "the gate under the average attack",
        found[0],
        found[1],
    )


def page(found: Sequence[dict[str, str | float]]) -> str:
    """The page from the effects of a record."""
    if not found:
        return "\n".join([_INTRODUCTION, _NOT_MEASURED, _REST])
    head = "| point | paper or released code | here | measured on | theirs, % | ours, % | effect |"
    lines = [head, "|---|---|---|---|---:|---:|---:|"]
    for effect in found:
        theirs = float(effect["paper_accuracy"])
        ours = float(effect["our_accuracy"])
        texts = " | ".join(str(effect[k]) for k in ("point", "paper", "ours", "measured"))
        interval = f"{float(effect['low']):+.1f} to {float(effect['high']):+.1f}"
        same = effect["low"] == effect["high"] == 0
        change = "no image differs" if same else f"{ours - theirs:+.1f} ({interval})"
        lines.append(f"| {texts} | {theirs:.1f} | {ours:.1f} | {change} |")
    return "\n".join([_INTRODUCTION, *lines, _REST])


_INTRODUCTION = f"""# Differences: multi-exit game

Where the experiments and the game knowingly differ from Xu et al., "Rethinking the Adversarial
Robustness of Multi-Exit Neural Networks in an Attack-Defense Game", or from released code of its
references. The paper's code and appendices were not available.

The table is written from `benchmarks/records/multi-exit-differences.json` by
`python -m benchmarks.multi_exit_differences`: accuracies on {N} digits of the embedded network
`digits-exits`, radius 0.15, seed 0. The effect is ours minus theirs on the same images, in points,
with a 95 % interval over images.
"""
_NOT_MEASURED = """**The record of this table does not exist yet: these effects were not measured.**

* EoT-PGD-20: AIMER attacks the expected loss of the defender's strategy, exactly; the main text
  does not define it, and common code averages two gradients.
* LAFIT: its code is not public; LAFEAT, its earlier version, with the other exits as latent heads.
* Output of AutoAttack: the point of highest loss; its published code returns the clean image where
  the attack fails. Measured at the small scale in [multi-exit.md](multi-exit.md).
* Loss of a partial attack: the mean of losses (Eq. 4); the loss of the mean logits is an option.
* Rule of the dynamic inference [3]: not public; the confidence rule of MSDNet, a guess."""
_REST = """
Measured elsewhere:

* **Double oracle** (not in the paper): see [double-oracle.md](double-oracle.md).
* **Records at the small scale** use narrow networks, few images and few repeats; see
  [multi-exit.md](multi-exit.md), which marks what is stale.

Same as the paper or the released code, and formerly different:

* **FAT**: tau is 0, 1, 2 and changes after 50/120 and 90/120 of the training, as in the released
  code. It was constantly 1.
* **NEED** is the optimal strategy with the highest clean accuracy. The paper does not say which of
  several optimal strategies it uses; any of them has the same value.

Different, with an effect that was not measured:

* **Location of exits and training settings**: the appendix that gives them was not available.
* **Dynamic inference [16]**: thresholds come from held-out training images. The released code
  tunes them on test images and then shifts them by hand.
* **Payoff matrix**: a partial attack on every subset of exits. The paper describes an average
  attack on a subset of the data.
* **VMI-FGSM**: neighbors are clipped into the image box, which the released code does not do.
* **Points of attacks**: the visited point of highest loss, where common code returns the last one.
* **WRN-34-10, RANet, L2W-DEN and Tiny ImageNet** can be run with `saddlepoint reproduce
  multi-exit/architectures`; there is no record yet.
"""


if __name__ == "__main__":
    main()
