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
from collections.abc import Mapping
from dataclasses import dataclass, field
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
    """Which attack cells are computed again."""

    cells: int | None = 0  # number; None: all of them
    # Seed of the choice. It must not be known before the run is finished.
    challenge: str = field(default_factory=lambda: secrets.token_hex(8))


NO_REPLAY = Replay(0, "")


class StoredCell(NamedTuple):
    """An attack cell of a run with its stored result."""

    work: Work
    cell: AttackCell
    episode: Episode

    @property
    def title(self) -> str:
        """Adversary and images, for messages."""
        group, number = self.cell
        rows = self.work.plan.job.groups[group]
        name = self.work.plan.adversaries[number].name
        return f"{name} on images {int(rows[0])} to {int(rows[-1])}"


class _Choice(NamedTuple):
    suspicious: list[AttackCell]  # with the lowest margins beside the other attacks
    drawn: list[AttackCell]  # at random from the others


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
        cell: StoredCell(work, cell, episodes[key]) for cell, key in keys.items() if cell[1] > 0
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
    choice = _choose({cell: one.episode for cell, one in stored.items()}, replay)
    chosen = (*choice.suspicious, *choice.drawn)
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
    missed = math.comb(total - forged, drawn) / math.comb(total, drawn)
    return (
        f"If {count(forged, 'cell')} held results of a weaker attack, the {whole(drawn)} drawn at "
        f"random would have shown it with a probability of {percent(1 - missed, 0)}; "
        f"{whole(len(choice.suspicious))} with the lowest margins were added."
    )


def _choose(stored: Mapping[AttackCell, Episode], replay: Replay) -> _Choice:
    cells = sorted(stored)
    if replay.cells is None or replay.cells >= len(cells):
        return _Choice([], cells)
    deficits = _deficits(stored)
    ranked = sorted(cells, key=lambda cell: -deficits[cell])
    suspicious = ranked[: replay.cells // 2]
    others = [cell for cell in cells if cell not in suspicious]
    drawn = random.Random(replay.challenge).sample(others, replay.cells - len(suspicious))
    return _Choice(suspicious, sorted(drawn))


def _deficits(stored: Mapping[AttackCell, Episode]) -> dict[AttackCell, float]:
    """By how much the margins of a cell lie below the best ones of the same images.

    A weak attack has low margins everywhere, so each adversary is compared with itself on the other
    groups as well.
    """
    best: dict[int, Tensor] = {}
    for (group, _), episode in stored.items():
        margin = _margin(episode)
        best[group] = best[group].maximum(margin) if group in best else margin
    raw = {cell: float((best[cell[0]] - _margin(e)).mean()) for cell, e in stored.items()}
    lowest = {a: min(raw[cell] for cell in raw if cell[1] == a) for a in {a for _, a in raw}}
    several = len(best) > 1
    return {cell: raw[cell] - lowest[cell[1]] if several else raw[cell] for cell in raw}


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
