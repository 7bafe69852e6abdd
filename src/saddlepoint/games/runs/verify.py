"""Verify a saved game: evaluate every point again and derive the record from the saved cells."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from saddlepoint.audits import Plan
from saddlepoint.audits.cells import AttackCell
from saddlepoint.evaluation import Adversary, Episode, FixedPoints
from saddlepoint.games.runs.play import derive, outcomes_only
from saddlepoint.games.runs.prepare import PreparedGame, prepare
from saddlepoint.games.runs.record import GameError, GameRecord
from saddlepoint.locate import describe_error
from saddlepoint.phrases import agree, count_of
from saddlepoint.runs.compare import differences, listed, plain
from saddlepoint.runs.game_spec import GameSpec
from saddlepoint.runs.replay import NO_REPLAY, Replay, StoredCell, replay_cells
from saddlepoint.runs.spec import migrate_spec, validate
from saddlepoint.runs.store import Store, identity
from saddlepoint.runs.verify import (
    Check,
    cell_check,
    manifest_check,
    of_other_version,
    other_version_check,
    undamaged_cells,
)
from saddlepoint.runs.work import Work, torch_threads

_NOT_FROM_CELLS = ("seconds", "versions")  # fields of the record that cells do not determine


class _MissingError(Exception):
    """A cell that the game needs is missing."""


def checks(store: Store, replay: Replay = NO_REPLAY) -> Iterator[Check]:
    """The checks of a saved game, one after the other.

    Checks that depend on a failed check are left out.

    Args:
        store: the folder of the game.
        replay: which attack cells are computed again; default: none.
    """
    run = store.run()
    yield manifest_check(store, run)
    episodes, damage = undamaged_cells(store)
    yield cell_check(run, episodes, damage)
    try:
        record = GameRecord.load(store.folder)
    except (GameError, OSError) as error:
        yield Check("record", False, str(error))
        return
    if record.run != identity(run):
        message = "game.json belongs to another request than run.json. Play the game to its end."
        yield Check("record", False, message)
        return
    try:
        spec = validate(GameSpec, run["passed"] or {}, "the specification in run.json")
        prepared = prepare(spec, allow_unusual=True)
    except (Exception, SystemExit) as error:  # the code of the target can raise anything
        reason = error if isinstance(error, ValueError) else describe_error(error)
        yield Check("target", False, f"it cannot be loaded again: {reason}")
        return
    target = _target_check(prepared, run)
    if not target.passed and of_other_version(run):
        unchecked = (
            "Its points are not evaluated again. Play it with this version in a new folder to "
            "compare the results."
        )
        yield other_version_check(run, unchecked, passed=False)
        return
    yield target
    yield from _point_and_record_checks(prepared, record, episodes, run, replay)


def _target_check(prepared: PreparedGame, run: Mapping[str, Any]) -> Check:
    name = run["target"]["name"]
    expected = run["target"]["sha256"]
    found = prepared.target_digest()
    if prepared.spec.model_dump(mode="json") != migrate_spec(run["spec"] or {}):
        message = (
            "the specification in run.json is not the one that was passed, "
            "completed with the defaults of this version."
        )
        return Check("target", False, message)
    if found != expected:
        message = f"{name} is another model: expected hash {expected[:16]}…, found {found[:16]}…."
        return Check("target", False, message)
    return Check("target", True, f"{name} is the model that was played against.")


def _point_and_record_checks(
    prepared: PreparedGame,
    record: GameRecord,
    episodes: Mapping[str, Episode],
    run: Mapping[str, Any],
    replay: Replay,
) -> Iterator[Check]:
    build = _SavedEpisodes(prepared, episodes, building=True)
    score = _SavedEpisodes(prepared, episodes, building=False)
    derived = None
    missing = ""
    try:
        derived = derive(prepared, build, score, run=record.run, started=time.perf_counter())
    except _MissingError as error:
        missing = str(error)
    points = build.points + score.points
    wrong = build.wrong + score.wrong
    outside = build.outside + score.outside
    yield Check(
        "inside",
        not outside,
        f"{count_of(points - outside, points, 'point')} {agree(points - outside, 'lies', 'lie')} "
        f"within {prepared.threat.space}.",
    )
    yield Check(
        "answers",
        not wrong,
        f"the outputs of all columns on {count_of(points - wrong, points, 'point')} are as "
        "recorded.",
    )
    if derived is None:
        yield Check("record", False, missing)
    else:
        # Another version may write the same request with other options.
        ignored = (*_NOT_FROM_CELLS, "command") if of_other_version(run) else _NOT_FROM_CELLS
        yield _record_check(record, derived, ignored)
        if replay.cells != 0:
            yield replay_cells(_replayable(build, score), replay)


def _replayable(build: _SavedEpisodes, score: _SavedEpisodes) -> dict[AttackCell, StoredCell]:
    """All attack cells of both parts of the game, numbered by images and attack."""
    found = {}
    attacks: list[tuple[int, int]] = []
    first = 0
    for part in (build, score):
        for one in part.cells:
            group, number = one.cell
            # Two attacks of a game may have the same name.
            attack = id(one.work), number
            if attack not in attacks:
                attacks.append(attack)
            found[first + group, attacks.index(attack)] = one
        first += part.groups
    return found


def _record_check(record: GameRecord, derived: GameRecord, ignored: Sequence[str]) -> Check:
    saved = _determined_by_cells(record.record(), ignored)
    expected = _determined_by_cells(derived.record(), ignored)
    found = list(differences(plain(saved), plain(expected)))
    for name in ("correct", "scored"):
        if not torch.equal(getattr(record, name), getattr(derived, name)):
            found.append((f"{name} of game.safetensors", "other outcomes", "those of the cells"))
    if found:
        return Check("record", False, listed("game.json", found))
    return Check("record", True, "game.json is what the cells give.")


class _SavedEpisodes:
    """Finds the episodes of adversaries among saved cells and evaluates their points again.

    It is a `RunAdversaries`. It counts points outside the perturbation set and points with other
    outputs than recorded.
    """

    def __init__(
        self, prepared: PreparedGame, episodes: Mapping[str, Episode], *, building: bool
    ) -> None:
        self._prepared = prepared
        self._episodes = episodes
        self._job = prepared.job(building=building)
        self.points = 0
        self.wrong = 0
        self.outside = 0
        self.groups = len(self._job.groups)
        self.cells: list[StoredCell] = []  # without those of the clean images

    def __call__(self, adversaries: Sequence[Adversary]) -> list[Episode]:
        spec = self._prepared.spec
        plan = Plan(spec.target, "standard", self._job, tuple(adversaries))
        work = Work.of(plan, threads=spec.threads)
        missing = sum(key not in self._episodes for key in work.keys.values())
        if missing:
            raise _MissingError(
                f"{count_of(missing, len(work.keys), 'cell')} that "
                f"{agree(len(work.keys), 'follows', 'follow')} from target, data, threat model, "
                f"attack and earlier rounds {agree(missing, 'is', 'are')} not here: something "
                "differs from what was played."
            )
        found = []
        for a, adversary in enumerate(adversaries):
            self.cells += self._attack_cells(work, a)
            parts = [self._episodes[work.keys[g, a]] for g in range(len(self._job.groups))]
            episode = Episode.joined(parts)
            self._count(episode)
            found.append(replace(outcomes_only(episode), adversary=adversary.name))
        return found

    def _attack_cells(self, work: Work, number: int) -> list[StoredCell]:
        if isinstance(work.plan.adversaries[number], FixedPoints):
            return []
        groups = range(self.groups)
        read = self._episodes.__getitem__
        return [StoredCell(work, (g, number), partial(read, work.keys[g, number])) for g in groups]

    def _count(self, episode: Episode) -> None:
        points = episode.points.to(self._job.x)
        job = self._job
        inside = points.isfinite().flatten(1).all(1) & job.threat.space.contains(points, job.x)
        self.points += len(points)
        self.outside += int((~inside).sum())
        if not inside.all():
            return
        again = FixedPoints("again", points)
        with torch_threads(self._prepared.spec.threads):
            evaluated = Episode.joined([job.play(again, rows) for rows in job.groups])
        self.wrong += int((evaluated.correct.cpu() != episode.correct.cpu()).any(0).sum())


def _determined_by_cells(record: dict[str, Any], ignored: Sequence[str]) -> dict[str, Any]:
    """The record without ignored fields and times."""
    rows = {
        name: [
            {key: value for key, value in row.items() if key != "seconds"} for row in record[name]
        ]
        for name in ("rows", "scored_rows")
    }
    rest = {name: value for name, value in record.items() if name not in ignored}
    return {**rest, **rows}
