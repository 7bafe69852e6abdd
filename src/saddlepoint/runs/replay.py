"""Computes some attack cells of a run again and compares them with the stored ones.

The points of a cell can be evaluated again, but points cannot show that the attack was run as
specified: harmless points in the place of adversarial ones have the predictions that are recorded
for them. Only the attack itself shows it. It is deterministic, so a cell that is computed again
has the same bytes. On a machine that rounds differently, outcomes are compared instead.
"""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from saddlepoint.audits.cells import AttackCell
from saddlepoint.audits.verdict import Check
from saddlepoint.evaluation import Episode
from saddlepoint.phrases import agree, count, count_of, percent, whole
from saddlepoint.runs.packed_cell import PackedCell
from saddlepoint.runs.work import FailedCell, Work, result_of

_FORGED = 0.25  # share of forged cells for which the probability of detection is stated
_LISTED = 3  # problems in a message
_TENSORS = (
    "points",
    "correct",
    "chosen",
    "answered",
    "margin",
    "size",
    "copies",
    "forward",
    "backward",
    "loss_curve",
)


@dataclass(frozen=True)
class Replay:
    """Which attack cells are computed again.

    As many as `cells` are drawn at random, from as many attacks as possible. Half as many are added
    that look as if a weaker attack had computed them.
    """

    cells: int | None = 0  # drawn at random; None: all of them
    # Seed of the choice. It must not be known before the run is finished.
    challenge: str = field(default_factory=lambda: secrets.token_hex(8))


NO_REPLAY = Replay(0, "")


class StoredCell(NamedTuple):
    """An attack cell of a run with its stored result."""

    work: Work
    cell: AttackCell
    read: Callable[[], Episode]  # the stored result

    @property
    def episode(self) -> Episode:
        """The stored result, read now."""
        return self.read()

    @property
    def title(self) -> str:
        """Adversary and images, for messages."""
        group, number = self.cell
        rows = self.work.plan.job.groups[group]
        name = self.work.plan.adversaries[number].name
        return f"{name} on images {int(rows[0])} to {int(rows[-1])}"


class _Choice(NamedTuple):
    drawn: list[AttackCell]  # at random
    suspicious: list[AttackCell]  # others whose attack gained least


def replay_check(
    work: Work,
    keys: Mapping[AttackCell, str],
    episodes: Mapping[str, Episode],
    replay: Replay,
    *,
    same_version: bool = True,
) -> Check:
    """Compute attack cells of an audit again and compare them with the stored ones.

    Args:
        work: the plan with its remedies.
        keys: the stored key of each cell; clean images are left out.
        episodes: the stored results by key.
        replay: how many cells, and the seed of their choice.
        same_version: whether this version wrote the cells, so that bytes can be compared.
    """
    stored = {
        cell: StoredCell(work, cell, partial(episodes.__getitem__, key))
        for cell, key in keys.items()
        if cell[1] > 0
    }
    return replay_cells(stored, replay, same_version=same_version)


def replay_cells(
    stored: Mapping[AttackCell, StoredCell], replay: Replay, *, same_version: bool = True
) -> Check:
    """Compute some of these cells again and compare them with the stored ones.

    Args:
        stored: the cells by number of their images and number of their attack.
        replay: how many cells, and the seed of their choice.
        same_version: whether this version wrote the cells, so that bytes can be compared.
    """
    choice = _choose(stored, replay)
    chosen = (*choice.drawn, *choice.suspicious)
    again = {cell: result_of(stored[cell].work, stored[cell].cell) for cell in chosen}
    exact = [cell for cell in chosen if _same_bytes(again[cell], stored[cell].episode)]
    # A machine that gives the bytes of one cell gives those of all of them.
    tolerance = 0 if same_version and exact else 1
    problems = []
    for cell in chosen:
        if cell not in exact:
            found = _problem(again[cell], stored[cell].episode, tolerance, bytewise=bool(exact))
            problems += [f"{stored[cell].title}: {found}"] if found else []
    if problems:
        more = f"; and {len(problems) - _LISTED} more" if len(problems) > _LISTED else ""
        return Check("replay", False, f"{'; '.join(problems[:_LISTED])}{more}.")
    done = len(chosen)
    total = f"{count_of(done, len(stored), 'attack cell')} {agree(done, 'was', 'were')}"
    message = f"{total} computed again: {whole(len(exact))} with the same bytes"
    if len(exact) < done:
        message += f", {whole(done - len(exact))} with the same outcomes"
    return Check("replay", True, f"{message}. {_probability(len(stored), done, choice)}")


def _probability(total: int, done: int, choice: _Choice) -> str:
    """How likely it is that forged cells would have been found."""
    if done == total:
        return "No cell holds results of another attack."
    forged = math.ceil(_FORGED * total)
    drawn = len(choice.drawn)
    # A cell of each attack, in random order: the mean of products over distinct attacks is at most
    # the product of means (Maclaurin's inequality), which is what independent draws would miss.
    missed = (1 - forged / total) ** drawn
    return (
        f"If {count(forged, 'cell')} held results of a weaker attack, the {whole(drawn)} drawn at "
        f"random would have shown it with a probability of at least {percent(1 - missed, 0)}; "
        f"{count(len(choice.suspicious), 'cell')} with the least gain "
        f"{agree(len(choice.suspicious), 'was', 'were')} added."
    )


def _choose(stored: Mapping[AttackCell, StoredCell], replay: Replay) -> _Choice:
    cells = sorted(stored)
    if replay.cells is None or replay.cells >= len(cells):
        return _Choice(cells, [])
    drawn = _drawn(cells, replay.cells, random.Random(replay.challenge))
    # A forger can predict which cells are added, so the drawn ones do not depend on them.
    deficits = _deficits(stored)
    ranked = sorted(cells, key=lambda cell: -deficits[cell])
    suspicious = [cell for cell in ranked if cell not in drawn][: max(replay.cells // 2, 1)]
    return _Choice(drawn, suspicious)


def _drawn(cells: Sequence[AttackCell], number: int, rng: random.Random) -> list[AttackCell]:
    """Cells at random, one of each attack before the second one of any.

    If attacks have different numbers of cells, as in games, every cell has the same probability.
    """
    left = {attack: [cell for cell in cells if cell[1] == attack] for _, attack in cells}
    if len({len(own) for own in left.values()}) > 1:
        return sorted(rng.sample(cells, number))
    drawn: list[AttackCell] = []
    while len(drawn) < number:
        attacks = [attack for attack in left if left[attack]]
        for attack in rng.sample(attacks, min(len(attacks), number - len(drawn))):
            drawn.append(left[attack].pop(rng.randrange(len(left[attack]))))
    return sorted(drawn)


def _deficits(stored: Mapping[AttackCell, StoredCell]) -> dict[AttackCell, float]:
    """By how much a cell raised the margins less than its attack usually does.

    An attack that was withheld from all cells of some images is seen beside its cells of the other
    images. If all images are in one group, it is compared with the other attacks.
    """
    first = {cell[0]: one for cell, one in stored.items()}
    clean = {group: _clean_margin(one) for group, one in first.items()}
    gain = {cell: float((_margin(s.episode) - clean[cell[0]]).mean()) for cell, s in stored.items()}
    usual = {}
    for attack in {attack for _, attack in gain}:
        own = [value for cell, value in gain.items() if cell[1] == attack]
        usual[attack] = _upper_quartile(own if len(clean) > 1 else list(gain.values()))
    return {cell: usual[cell[1]] - value for cell, value in gain.items()}


def _upper_quartile(values: Sequence[float]) -> float:
    return sorted(values)[(3 * len(values)) // 4]


def _clean_margin(stored: StoredCell) -> Tensor:
    """Margins of the clean images of a cell, computed again, [N]."""
    result = result_of(stored.work, (stored.cell[0], 0))
    if isinstance(result, FailedCell):
        return torch.zeros(len(stored.episode.points), dtype=torch.double)
    return _margin(result.episode())


def _margin(episode: Episode) -> Tensor:
    """Margins of the images; the mean over columns if the defender has several answers, [N]."""
    margin = torch.nan_to_num(episode.margin.double(), nan=1e6, posinf=1e6, neginf=-1e6)
    return margin.mean(0)


def _same_bytes(result: PackedCell | FailedCell, stored: Episode) -> bool:
    if isinstance(result, FailedCell):
        return False
    again = result.episode()
    pairs = [(getattr(again, name), getattr(stored, name)) for name in _TENSORS]
    # Some margins are NaN, which is not equal to itself.
    return all(a.shape == b.shape and torch.equal(*map(torch.nan_to_num, (a, b))) for a, b in pairs)


def _problem(
    result: PackedCell | FailedCell, stored: Episode, tolerance: int, *, bytewise: bool
) -> str:
    """What is wrong with a stored cell that was computed again; empty if nothing is.

    Args:
        result: the cell, computed again.
        stored: the stored cell, with other bytes.
        tolerance: images that may have another outcome.
        bytewise: whether this machine gives the same bytes.
    """
    if isinstance(result, FailedCell):
        return f"it cannot be computed again: {result.reason}"
    again = result.episode()
    recorded = stored.correct
    found = again.correct
    same_shape = recorded.shape == found.shape and stored.points.shape == again.points.shape
    if same_shape and not bytewise and int((recorded != found).any(0).sum()) <= tolerance:
        return ""
    return (
        f"recorded {_outcome(stored)}, recomputed {_outcome(again)}: the cell does not hold the "
        "results of this attack"
    )


def _outcome(episode: Episode) -> str:
    correct = episode.correct.double().mean(0)
    images = count_of(float(correct.sum()), len(correct), "image")
    return f"{images} correct at a mean margin of {float(_margin(episode).mean()):.3g}"
