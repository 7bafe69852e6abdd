"""Play a specified game: some images build the matrix, the others evaluate strategies."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from saddlepoint.audits.cells import AttackCell, Measurement
from saddlepoint.defenses import Subset, subset_name
from saddlepoint.describe import describe
from saddlepoint.evaluation import Episode
from saddlepoint.evaluation.bootstrap import Estimate, mean_of
from saddlepoint.evaluation.referee import RunAdversaries
from saddlepoint.games.exit_attacks import ATTACKS, OPTIMIZERS, AttackSettings
from saddlepoint.games.exit_game import exit_game
from saddlepoint.games.matrix import Equilibrium, PerExample
from saddlepoint.games.payoffs import ExitGame
from saddlepoint.games.runs.prepare import PreparedGame, prepare
from saddlepoint.games.runs.record import (
    AdversaryRecord,
    GameError,
    GameRecord,
    SolvedStrategy,
    StrategyRecord,
)
from saddlepoint.games.runs.symptoms import find_symptoms
from saddlepoint.games.strategy_robustness import (
    StrategyEvaluations,
    StrategyRobustness,
    evaluate_strategies,
)
from saddlepoint.runs.cache import Watch
from saddlepoint.runs.cached_play import cached_play
from saddlepoint.runs.game_spec import GameSpec, game_command
from saddlepoint.runs.hashing import tensor_digest
from saddlepoint.runs.manifest import write_manifest
from saddlepoint.runs.runner import open_run
from saddlepoint.runs.store import Store, identity
from saddlepoint.runs.work import Work, torch_threads

_DRAWS = 200  # bootstrap samples of the value; each solves a linear program


def run_game(spec: GameSpec, out: Path, *, watch: Watch | None = None) -> GameRecord:
    """Play the game and save it in the folder `out`.

    Finished cells are saved there too; the same call resumes an interrupted game.

    Args:
        spec: the specification.
        out: the folder.
        watch: receives progress.
    """
    started = time.perf_counter()
    prepared = prepare(spec)
    store = Store(out)
    request = _request(prepared)
    previous = open_run(store, request, watch)
    if previous and identity(previous) == identity(request):
        request = {**request, "cells": previous["cells"]}
    listing = _CellListing(store, request, watch)
    build = _cached_player(prepared, listing, out, building=True)
    score = _cached_player(prepared, listing, out, building=False)
    record = derive(prepared, build, score, run=identity(request), started=started)
    if not listing.computed:
        record = _with_recorded_seconds(record, out)
    record.save(out)
    store.log("concluded", run=record.run, value=record.value.value, seconds=record.seconds)
    write_manifest(store, store.run())
    del record  # before its outcomes are read again
    return GameRecord.load(out)  # return exactly what was saved


def _with_recorded_seconds(record: GameRecord, out: Path) -> GameRecord:
    """The record with the time of the stored one, if that is the record of the same request."""
    try:
        recorded = GameRecord.load(out)
    except (GameError, OSError):
        return record
    return replace(record, seconds=recorded.seconds) if recorded.run == record.run else record


def _cached_player(
    prepared: PreparedGame, watch: Watch, out: Path, *, building: bool
) -> RunAdversaries:
    job = prepared.job(building=building)
    return cached_play(
        job.defense,
        job.x,
        job.y,
        threat=job.threat,
        answers=job.answers,
        out=out,
        name=prepared.spec.target,
        seed=job.seed,
        batch_size=job.batch_size,
        threads=prepared.spec.threads,
        watch=watch,
        keep=outcomes_only,
    )


def outcomes_only(episode: Episode) -> Episode:
    """What a game needs of an episode: its outcomes, exact as bool values, and its cost.

    There are as many outcomes as attacks x sets of exits x images: all else takes most memory.
    """
    correct = episode.correct.bool()
    return replace(
        episode.without_points(),
        correct=correct,
        chosen=correct,
        answered=episode.answered[:, :0].clone(),
        margin=episode.margin[:, :0].clone(),
    )


def _request(prepared: PreparedGame) -> dict[str, Any]:
    """What was requested, as passed and with all defaults; cells are added when they are known."""
    spec = prepared.spec
    return {
        "kind": "game",
        "passed": spec.model_dump(mode="json", exclude_unset=True),
        "spec": spec.model_dump(mode="json"),
        "target": {"name": spec.target, "sha256": prepared.target_digest()},
        "threat": describe(prepared.threat),
        "data": tensor_digest(prepared.x, prepared.y),
        "device": str(prepared.x.device),
        "examples": len(prepared.x),
        "cells": [],
    }


class _CellListing:
    """Saves which cells the game needs as soon as they are known, and forwards progress."""

    def __init__(self, store: Store, request: Mapping[str, Any], watch: Watch | None) -> None:
        self._store = store
        self._request = dict(request)
        self._watch = watch
        self.computed = 0  # cells

    def begin(self, work: Work, missing: Sequence[AttackCell]) -> None:
        self.computed += len(missing)
        self._request["cells"] = sorted({*self._request["cells"], *work.keys.values()})
        self._store.write_run(self._request)
        if self._watch:
            self._watch.begin(work, missing)

    def cell(self, cell: AttackCell, episode: Episode) -> None:
        if self._watch:
            self._watch.cell(cell, episode)

    def measure(self, missing: Sequence[Measurement]) -> None:
        if self._watch:
            self._watch.measure(missing)

    def measured(self, cell: Measurement) -> None:
        if self._watch:
            self._watch.measured(cell)

    def say(self, message: str) -> None:
        if self._watch:
            self._watch.say(message)


def derive(
    prepared: PreparedGame,
    build: RunAdversaries,
    score: RunAdversaries,
    *,
    run: str,
    started: float,
) -> GameRecord:
    """Play the game, solve it, evaluate its strategies, and return the record.

    Args:
        prepared: the specification with target and images.
        build: plays adversaries on the images that build the game.
        score: plays adversaries on the other images.
        run: identity of the request.
        started: `time.perf_counter()` at the start.
    """
    spec = prepared.spec
    optimizer = OPTIMIZERS[spec.attack]
    exit_attack = ATTACKS[spec.attack]
    game = exit_game(
        prepared.base,
        prepared.x[: prepared.built_on],
        prepared.y[: prepared.built_on],
        threat=prepared.threat,
        attack=optimizer,
        exit_attack=exit_attack,
        subsets=spec.subsets,
        rows=spec.rows,
        tolerance=spec.tolerance,
        run_adversaries=build,
    )
    with torch_threads(spec.threads):
        solved = _solve(game, spec.seed)
    settings = AttackSettings(prepared.views, optimizer, exit_attack=exit_attack)
    evaluations = evaluate_strategies(game, _strategies(game, solved), settings, score)
    return _record(prepared, game, solved, evaluations, run, started)


class _SolvedGame(NamedTuple):
    equilibrium: Equilibrium
    per_example: PerExample
    value: Estimate
    pure: Subset  # the best subset without randomization
    pure_value: float


def _solve(game: ExitGame, seed: int) -> _SolvedGame:
    lowest = game.payoff.amin(0)  # [D]
    return _SolvedGame(
        equilibrium=game.equilibrium(),
        per_example=game.per_example(),
        value=game.interval(ExitGame.value, draws=_DRAWS, seed=seed),
        pure=game.subsets[int(lowest.argmax())],
        pure_value=float(lowest.amax()),
    )


def _strategies(game: ExitGame, solved: _SolvedGame) -> dict[str, Tensor]:
    """The strategies that are evaluated on the other images."""
    return {
        "NEED": solved.equilibrium.defender,
        f"best pure answer: {subset_name(solved.pure)}": game.one_hot(solved.pure),
        "per-image mix": solved.per_example.defender,
        f"last exit: {game.exits}": game.one_hot((game.exits,)),
    }


def _record(
    prepared: PreparedGame,
    game: ExitGame,
    solved: _SolvedGame,
    evaluations: StrategyEvaluations,
    run: str,
    started: float,
) -> GameRecord:
    spec = prepared.spec
    equilibrium = solved.equilibrium
    strategies = tuple(_strategy(name, one) for name, one in evaluations.robustness.items())
    gains = _gains(evaluations)
    rows = _rows(game.outcomes.episodes, game.targets)
    scored_rows = _scored_rows(game, evaluations)
    symptoms = find_symptoms(
        solved.value,
        solved.pure_value,
        game.exploitability,
        spec.tolerance,
        strategies,
        gains,
        (*rows, *scored_rows[1:]),
    )
    return GameRecord(
        target=spec.target,
        threat=str(prepared.threat),
        data=prepared.data,
        n=len(prepared.x),
        built_on=prepared.built_on,
        exits=game.exits,
        subsets=game.subsets,
        targets=game.targets,
        value=solved.value,
        equilibrium=_solution(equilibrium),
        attacker=_floats(equilibrium.attacker),
        response=_floats(game.best_response(equilibrium.defender)),
        mismatch=_mismatch(game, equilibrium),
        matched=sum(subset in game.targets for subset in game.subsets),
        beaten=game.beaten_matches(),
        exploitability=game.exploitability,
        pure=solved.pure,
        pure_value=solved.pure_value,
        per_example=_solution(solved.per_example),
        strategies=strategies,
        gains=gains,
        rows=rows,
        scored_rows=scored_rows,
        symptoms=(*prepared.findings, *symptoms),
        seed=spec.seed,
        spec=spec.model_dump(mode="json"),
        passed=spec.model_dump(mode="json", exclude_unset=True),
        hashes=_hashes(prepared),
        versions=_versions(),
        command=game_command(spec),
        seconds=time.perf_counter() - started,
        run=run,
        correct=game.correct.cpu().bool(),
        scored=torch.stack([e.correct for e in evaluations.episodes]).cpu().bool(),
    )


def _hashes(prepared: PreparedGame) -> dict[str, str]:
    images = tensor_digest(prepared.x, prepared.y)
    return {"target": prepared.target_digest(), "images": images}


def _versions() -> dict[str, str]:
    return {
        "saddlepoint": version("saddlepoint"),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _strategy(name: str, found: StrategyRobustness) -> StrategyRecord:
    return StrategyRecord(
        name,
        _floats(found.strategy),
        found.clean,
        found.restricted,
        found.aimer,
        found.expected_loss,
        found.per_image,
    )


def _gains(evaluations: StrategyEvaluations) -> dict[str, Estimate]:
    """NEED minus the best pure answer, paired by image."""
    need, pure, *_ = evaluations.robustness.values()
    return {
        "clean": mean_of(need.correct[0] - pure.correct[0]),
        "aimer": mean_of(need.response @ need.correct - pure.response @ pure.correct),
        "expected_loss": mean_of(need.correct[need.own_row] - pure.correct[pure.own_row]),
        "per_image": mean_of(need.correct.amin(0) - pure.correct.amin(0)),
    }


def _rows(
    episodes: Sequence[Episode], targets: Sequence[Subset | None]
) -> tuple[AdversaryRecord, ...]:
    return tuple(
        AdversaryRecord(
            episode.adversary,
            target,
            float(episode.forward.double().mean()),
            float(episode.backward.double().mean()),
            episode.seconds,
            int(episode.copies.sum()),
        )
        for episode, target in zip(episodes, targets, strict=True)
    )


def _scored_rows(game: ExitGame, evaluations: StrategyEvaluations) -> tuple[AdversaryRecord, ...]:
    attacked = [target for target in game.targets if target]
    own = [None for _ in evaluations.robustness]
    return _rows(evaluations.episodes, [None, *attacked, *own])


def _mismatch(game: ExitGame, equilibrium: Equilibrium) -> float | None:
    """The mismatch rate at equilibrium; None if a played row attacks no subset of exits."""
    attacker = equilibrium.attacker
    for target, p in zip(game.targets, attacker.tolist(), strict=True):
        if target is None and p > 0:
            return None
    return game.mismatch(attacker, equilibrium.defender)


def _solution(solved: Equilibrium | PerExample) -> SolvedStrategy:
    return SolvedStrategy(_floats(solved.defender), solved.value, solved.gap)


def _floats(values: Tensor) -> tuple[float, ...]:
    return tuple(values.tolist())
