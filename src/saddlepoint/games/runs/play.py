"""From a specification to a game: its images are cut in two, one part builds the matrix, the other scores what came out."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from saddlepoint.attacks.spaces import Ball
from saddlepoint.audits.cells import Job
from saddlepoint.audits.plan import Plan
from saddlepoint.audits.result import Symptom
from saddlepoint.audits.target.admission import TargetError, placed
from saddlepoint.audits.target.check import Checked, check
from saddlepoint.data import load_data
from saddlepoint.defenses import Context, Defense, Subset, subset_name
from saddlepoint.describe import describe
from saddlepoint.evaluation import Episode, Threat
from saddlepoint.evaluation.bootstrap import Estimate, mean_of
from saddlepoint.games.aimer import Exposure, exposures
from saddlepoint.games.exit_attacks import ASCENTS, ATTACKS
from saddlepoint.games.exit_game import (
    ExitGame,
    Offense,
    Send,
    actions,
    columns_of,
    exit_game,
    game_base,
)
from saddlepoint.games.runs.record import Exposed, GameRecord, Played, Solved
from saddlepoint.games.runs.spec import GameSpec, command
from saddlepoint.games.runs.symptoms import signs
from saddlepoint.runs.cache import Watch
from saddlepoint.runs.cached_play import kept
from saddlepoint.runs.hashing import tensor_digest
from saddlepoint.runs.runner import ask
from saddlepoint.runs.spec import NORMS, SpecError, radius
from saddlepoint.runs.store import Store, identity
from saddlepoint.runs.targets import resolve
from saddlepoint.runs.work import Cell, Work, torch_threads

_DRAWS = 200  # of the bootstrap of the value; each solves a linear program


@dataclass(frozen=True)
class Setting:
    """A specification with its target and images loaded."""

    spec: GameSpec
    base: Defense  # without a strategy of its own
    views: tuple[str, ...]
    x: Tensor
    y: Tensor
    built_on: int
    data: str
    findings: tuple[Symptom, ...]

    @property
    def threat(self) -> Threat:
        return Threat(Ball(NORMS[self.spec.threat.norm], radius(self.spec.threat.eps)))

    @property
    def columns(self) -> tuple[Subset, ...]:
        return actions(self.spec.subsets, len(self.views))

    def job(self, *, building: bool) -> Job:
        """The images that build the game, or the others."""
        part = slice(None, self.built_on) if building else slice(self.built_on, None)
        x = self.x[part]
        y = self.y[part]
        return Job(
            self.base,
            x,
            y,
            self.threat,
            self.spec.seed,
            self.spec.batch_size,
            columns_of(self.columns),
        )

    def target_digest(self) -> str:
        """SHA-256 of all that can be seen of the target."""
        nobody = Plan(self.spec.target, "standard", self.job(building=True), (), ())
        return Work.of(nobody, threads=self.spec.threads).target


def prepare(spec: GameSpec) -> Setting:
    """Load and check all that the game needs; whatever is wrong is said before anything is attacked."""
    data = load_data(spec.data.name, split=spec.data.split, n=spec.data.n, root=spec.data.root)
    target, _ = resolve(spec.target)
    x = data.x.to(spec.device)
    y = data.y.to(spec.device).long()
    checked = check(
        placed(target, spec.device), x, y, Ball(NORMS[spec.threat.norm], radius(spec.threat.eps))
    )
    base = game_base(_granting(checked, spec.target))
    with torch.no_grad():
        views = base.trace(x[:1], Context.seeded(0, 1)).names
    if len(views) < 2:
        raise TargetError(
            f"{spec.target} has one output, and a game needs several exits. Return a list of logits, one per exit; "
            "`attach_exits(net, {'layer name': head})` adds exits to an ordinary network."
        )
    actions(spec.subsets, len(views))  # refuses more than can be played
    built_on = round(spec.split * len(x))
    if not 0 < built_on < len(x):
        raise SpecError(
            f"a share of {spec.split:g} of {len(x)} images leaves {built_on} to build the game and {len(x) - built_on} to score; "
            "both need one at least. Take more images with --n, or another --split."
        )
    findings = tuple(
        finding for finding in checked.findings if finding.name != "several exits"
    )  # here they are expected
    return Setting(spec, base, views, x, y, built_on, data.name, findings)


def _granting(checked: Checked, name: str) -> Defense:
    if checked.defense.grants != "gradient":
        raise TargetError(
            f"{name} gives {checked.defense.grants} access only, and the attacks of the game ascend gradients. Hand over an "
            "nn.Module or a Defense whose exits can be differentiated."
        )
    return checked.defense


def run_game(spec: GameSpec, out: Path, *, watch: Watch | None = None) -> GameRecord:
    """Play the game in the folder `out`: finished cells are kept, and found again when it is asked for again."""
    started = time.perf_counter()
    setting = prepare(spec)
    store = Store(out)
    about = _about(setting)
    held = ask(store, about, watch)
    if held and identity(held) == identity(about):
        about = {**about, "cells": held["cells"]}
    listing = _Listing(store, about, watch)
    sends = [_kept(setting, listing, out, building=building) for building in (True, False)]
    found = derive(setting, *sends, run=identity(about), started=started)
    found.save(out)
    store.log("concluded", run=found.run, value=found.value.value, seconds=found.seconds)
    return GameRecord.load(out)  # what is shown is what is kept


def _kept(setting: Setting, watch: Watch, out: Path, *, building: bool) -> Send:
    job = setting.job(building=building)
    spec = setting.spec
    return kept(
        job.defense, job.x, job.y, threat=job.threat, answers=job.answers, out=out, name=spec.target, seed=job.seed,
        batch_size=job.batch_size, threads=spec.threads, watch=watch,
    )  # fmt: skip


def _about(setting: Setting) -> dict[str, Any]:
    """What was asked for, as passed and with all defaults; cells are added as they become known."""
    spec = setting.spec
    return {
        "kind": "game",
        "passed": spec.model_dump(mode="json", exclude_unset=True),
        "spec": spec.model_dump(mode="json"),
        "target": {"name": spec.target, "sha256": setting.target_digest()},
        "threat": describe(setting.threat),
        "data": tensor_digest(setting.x, setting.y),
        "device": str(setting.x.device),
        "examples": len(setting.x),
        "cells": [],
    }


class _Listing:
    """Writes down which cells the game needs as soon as that is known, and passes on what it is told."""

    def __init__(self, store: Store, about: Mapping[str, Any], watch: Watch | None) -> None:
        self._store = store
        self._about = dict(about)
        self._watch = watch

    def begin(self, work: Work, missing: Sequence[Cell]) -> None:
        self._about["cells"] = sorted({*self._about["cells"], *work.keys.values()})
        self._store.state(self._about)
        if self._watch:
            self._watch.begin(work, missing)

    def cell(self, cell: Cell, episode: Episode) -> None:
        if self._watch:
            self._watch.cell(cell, episode)

    def say(self, message: str) -> None:
        if self._watch:
            self._watch.say(message)


def derive(setting: Setting, build: Send, score: Send, *, run: str, started: float) -> GameRecord:
    """The whole record, from two ways to play adversaries: on the images of the game, and on the others."""
    spec = setting.spec
    craft = ATTACKS[spec.attack]
    loss_curve = ASCENTS[spec.attack]
    game = exit_game(
        setting.base, setting.x[: setting.built_on], setting.y[: setting.built_on], threat=setting.threat, attack=loss_curve,
        craft=craft, subsets=spec.subsets, rows=spec.rows, tolerance=spec.tolerance, send=build,
    )  # fmt: skip
    with torch_threads(spec.threads):
        equilibrium = game.equilibrium()
        alone = game.per_example()
        value = game.interval(lambda drawn: drawn.equilibrium().value, draws=_DRAWS, seed=spec.seed)
    pure = game.subsets[int(game.payoff.amin(0).argmax())]
    mixes = {
        "NEED": equilibrium.defender,
        f"best pure answer: {subset_name(pure)}": game.one_hot(pure),
        "per-image mix": alone.defender,
        f"last exit: {game.exits}": game.one_hot((game.exits,)),
    }
    scored = exposures(game, mixes, Offense(setting.views, loss_curve, craft=craft), score)
    strategies = tuple(_exposed(name, exposure) for name, exposure in scored.exposures.items())
    need, best, *_ = scored.exposures.values()
    gains = _gains(need, best)
    pure_value = float(game.payoff.amin(0).amax())
    rows = _rows(game.outcomes.episodes, game.targets)
    targets = [None, *(target for target in game.targets if target), *(None for _ in mixes)]
    scored_rows = _rows(scored.episodes, targets)
    attacks = (*rows, *scored_rows[1:])
    symptoms = signs(
        value, pure_value, game.exploitability, spec.tolerance, strategies, gains, attacks
    )
    return GameRecord(
        target=spec.target, threat=str(setting.threat), data=setting.data, n=len(setting.x), built_on=setting.built_on,
        exits=game.exits, subsets=game.subsets, targets=game.targets, value=value,
        equilibrium=Solved(_plain(equilibrium.defender), equilibrium.value, equilibrium.gap),
        attacker=_plain(equilibrium.attacker), response=_plain(game.best_response(equilibrium.defender)),
        mismatch=_mismatch(game, equilibrium.attacker, equilibrium.defender),
        matched=sum(subset in game.targets for subset in game.subsets), beaten=game.beaten_matches(),
        exploitability=game.exploitability, pure=pure, pure_value=pure_value,
        per_example=Solved(_plain(alone.defender), alone.value, alone.gap), strategies=strategies, gains=gains,
        rows=rows, scored_rows=scored_rows, symptoms=(*setting.findings, *symptoms), seed=spec.seed,
        spec=spec.model_dump(mode="json"), passed=spec.model_dump(mode="json", exclude_unset=True),
        hashes={"target": setting.target_digest(), "images": tensor_digest(setting.x, setting.y)},
        versions={"saddlepoint": version("saddlepoint"), "torch": torch.__version__, "python": platform.python_version()},
        command=command(spec), seconds=time.perf_counter() - started, run=run,
        correct=game.correct.cpu().bool(), scored=torch.stack([e.correct for e in scored.episodes]).cpu().bool(),
    )  # fmt: skip


def _exposed(name: str, exposure: Exposure) -> Exposed:
    e = exposure
    return Exposed(
        name, _plain(e.strategy), e.clean, e.restricted, e.aimer, e.expected_loss, e.per_image
    )


def _gains(need: Exposure, pure: Exposure) -> dict[str, Estimate]:
    """The difference, image by image: the same images count for both."""
    return {
        "clean": mean_of(need.correct[0] - pure.correct[0]),
        "aimer": mean_of(need.response @ need.correct - pure.response @ pure.correct),
        "expected_loss": mean_of(need.correct[need.own] - pure.correct[pure.own]),
        "per_image": mean_of(need.correct.amin(0) - pure.correct.amin(0)),
    }


def _rows(episodes: Sequence[Episode], targets: Sequence[Subset | None]) -> tuple[Played, ...]:
    return tuple(
        Played(
            e.adversary,
            target,
            float(e.forward.double().mean()),
            float(e.backward.double().mean()),
            e.seconds,
            int(e.copies.sum()),
        )
        for e, target in zip(episodes, targets, strict=True)
    )


def _mismatch(game: ExitGame, attacker: Tensor, defender: Tensor) -> float | None:
    aimless = any(
        target is None and p > 0 for target, p in zip(game.targets, attacker.tolist(), strict=True)
    )
    return None if aimless else game.mismatch(attacker, defender)


def _plain(values: Tensor) -> tuple[float, ...]:
    return tuple(values.tolist())
