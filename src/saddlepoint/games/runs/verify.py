"""Does a game hold what it claims? Every point is put to the target again, and the record is made anew from what was played."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from saddlepoint.audits.plan import Plan
from saddlepoint.evaluation import Adversary, Episode, FixedPoints
from saddlepoint.games.exit_game import Send
from saddlepoint.games.runs.play import Setting, derive, prepare
from saddlepoint.games.runs.record import GameError, GameRecord
from saddlepoint.games.runs.spec import GameSpec
from saddlepoint.locate import describe_error
from saddlepoint.runs.store import Store, identity
from saddlepoint.runs.verify import Check, cell_check, sound_cells
from saddlepoint.runs.work import Work, torch_threads

_TIMED = ("seconds", "versions")


class _MissingError(Exception):
    """A cell that the game needs is not there."""


def checks(store: Store) -> Iterator[Check]:
    """One check after the other; those that rest on one that failed are left out."""
    run = store.run()
    episodes, damage = sound_cells(store)
    yield cell_check(run, episodes, damage)
    try:
        record = GameRecord.load(store.folder)
    except (GameError, OSError) as error:
        yield Check("record", False, str(error))
        return
    if record.run != identity(run):
        yield Check(
            "record",
            False,
            "game.json belongs to another request than run.json. Play the game to its end.",
        )
        return
    try:
        setting = prepare(GameSpec.model_validate_json(json.dumps(run["passed"])))
    except (Exception, SystemExit) as error:  # the target's code can raise anything
        yield Check(
            "target",
            False,
            f"it cannot be loaded again: {error if isinstance(error, ValueError) else describe_error(error)}",
        )
        return
    found = setting.target_digest()
    if setting.spec.model_dump(mode="json") != run["spec"]:
        yield Check(
            "target",
            False,
            "the specification in run.json is not the one that was passed, with the defaults of this version.",
        )
    elif found != run["target"]["sha256"]:
        expected = run["target"]["sha256"][:16]
        yield Check(
            "target",
            False,
            f"{run['target']['name']} is another model: expected hash {expected}…, found {found[:16]}….",
        )
    else:
        yield Check(
            "target", True, f"{run['target']['name']} is the model that was played against."
        )
    yield from _played(setting, record, episodes)


def _played(
    setting: Setting, record: GameRecord, episodes: Mapping[str, Episode]
) -> Iterator[Check]:
    scores = [_Scores(setting, episodes, building=building) for building in (True, False)]
    derived = None
    missing = ""
    try:
        derived = derive(
            setting, *(score.send for score in scores), run=record.run, started=time.perf_counter()
        )
    except _MissingError as error:
        missing = str(error)
    points = sum(score.points for score in scores)
    wrong = sum(score.wrong for score in scores)
    outside = sum(score.outside for score in scores)
    yield Check(
        "inside",
        not outside,
        f"{points - outside} of {points} points lie within {setting.threat.space}.",
    )
    yield Check(
        "answers",
        not wrong,
        f"{points - wrong} of {points} points are answered by every column as recorded.",
    )
    if derived is None:
        yield Check("record", False, missing)
        return
    claimed, due = (_untimed(one.record()) for one in (record, derived))
    differ = [name for name in due if claimed.get(name) != due[name]]
    same = torch.equal(record.correct, derived.correct) and torch.equal(
        record.scored, derived.scored
    )
    message = f"game.json says otherwise than the cells: {', '.join(differ) or 'outcomes'}."
    yield Check(
        "record",
        same and not differ,
        message if differ or not same else "game.json is what the cells lead to.",
    )


class _Scores:
    """Finds the episodes of adversaries among kept cells, and counts the points that are not what their cell says."""

    def __init__(
        self, setting: Setting, episodes: Mapping[str, Episode], *, building: bool
    ) -> None:
        self._setting = setting
        self._kept = episodes
        self._job = setting.job(building=building)
        self.points = self.wrong = self.outside = 0
        self.send: Send = self._send

    def _send(self, adversaries: Sequence[Adversary]) -> list[Episode]:
        threads = self._setting.spec.threads
        work = Work.of(
            Plan(self._setting.spec.target, "standard", self._job, tuple(adversaries), ()),
            threads=threads,
        )
        missing = sum(key not in self._kept for key in work.keys.values())
        if missing:
            raise _MissingError(
                f"{missing} of {len(work.keys)} cells that target, data, threat, attack and what was found so far lead to are not "
                "here: something differs from what was played."
            )
        found = []
        for a, adversary in enumerate(adversaries):
            parts = [self._kept[work.keys[g, a]] for g in range(len(self._job.groups))]
            found.append(replace(Episode.joined(parts), adversary=adversary.name))
            self._count(found[-1])
        return found

    def _count(self, episode: Episode) -> None:
        points = episode.points.to(self._job.x)
        job = self._job
        inside = points.isfinite().flatten(1).all(1) & job.threat.space.contains(points, job.x)
        self.points += len(points)
        self.outside += int((~inside).sum())
        if not inside.all():
            return
        with torch_threads(self._setting.spec.threads):
            judged = Episode.joined(
                [job.play(FixedPoints("again", points), rows) for rows in job.groups]
            )
        self.wrong += int((judged.correct.cpu() != episode.correct.cpu()).any(0).sum())


def _untimed(record: dict[str, Any]) -> dict[str, Any]:
    """Without what the cells do not determine."""
    rows = {
        name: [
            {key: value for key, value in row.items() if key != "seconds"} for row in record[name]
        ]
        for name in ("rows", "scored_rows")
    }
    symptoms = [
        (symptom["name"], symptom["level"]) for symptom in record["symptoms"]
    ]  # the words may tell of measured noise
    return {
        **{name: value for name, value in record.items() if name not in _TIMED},
        **rows,
        "symptoms": symptoms,
    }
