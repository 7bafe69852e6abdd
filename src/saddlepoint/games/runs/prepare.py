"""Load and check the target and the images of a game."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from saddlepoint.attacks.spaces import Ball
from saddlepoint.audits import AuditRequest, Plan
from saddlepoint.audits.cells import Job
from saddlepoint.audits.probes.stage import Probed, probe_stage
from saddlepoint.audits.target.admission import TargetError, placed
from saddlepoint.audits.verdict import Symptom, SymptomName
from saddlepoint.data import load_data
from saddlepoint.defenses import Context, Defense, Subset
from saddlepoint.evaluation import Threat
from saddlepoint.games.exit_game import actions, columns_of, game_base
from saddlepoint.phrases import count
from saddlepoint.runs.game_spec import GameSpec
from saddlepoint.runs.spec import NORMS, SpecError, parse_radius
from saddlepoint.runs.targets import resolve
from saddlepoint.runs.work import Work


@dataclass(frozen=True)
class PreparedGame:
    """A specification with its target and images loaded."""

    spec: GameSpec
    base: Defense  # without a strategy
    views: tuple[str, ...]  # one per exit
    x: Tensor  # [N, ...]
    y: Tensor  # [N]
    built_on: int  # the first images, which build the game; the others evaluate strategies
    data: str  # name of the data
    findings: tuple[Symptom, ...]  # of the check of the target

    @property
    def threat(self) -> Threat:
        """The threat model of the specification."""
        return Threat(_space(self.spec))

    @property
    def columns(self) -> tuple[Subset, ...]:
        """The subsets of exits that may be attacked or answer."""
        return actions(self.spec.subsets, len(self.views))

    def job(self, *, building: bool) -> Job:
        """What is played on the images that build the game, or on the others."""
        part = slice(None, self.built_on) if building else slice(self.built_on, None)
        return Job(
            self.base,
            self.x[part],
            self.y[part],
            self.threat,
            self.spec.seed,
            self.spec.batch_size,
            columns_of(self.columns),
        )

    def target_digest(self) -> str:
        """SHA-256 of the target."""
        no_adversaries = Plan(self.spec.target, "standard", self.job(building=True), ())
        return Work.of(no_adversaries, threads=self.spec.threads).target


def prepare(spec: GameSpec, *, allow_unusual: bool = False) -> PreparedGame:
    """Load and check everything that the game needs, before any attack runs.

    Args:
        spec: the specification.
        allow_unusual: also if the specification does not say so: its game was played already.

    Raises:
        TargetError: the target cannot be used in an exit game.
        SpecError: the split leaves no images for one of the two parts.
    """
    data = load_data(spec.data.name, split=spec.data.split, n=spec.data.n, root=spec.data.root)
    target, _ = resolve(spec.target)
    x = data.x.to(spec.device)
    y = data.y.to(spec.device).long()
    request = AuditRequest(
        placed(target, spec.device),
        x,
        y,
        Threat(_space(spec)),
        allow_unusual=spec.allow_unusual or allow_unusual,
    )
    probed = probe_stage(request)
    base = game_base(_with_gradients(probed, spec.target))
    with torch.no_grad():
        views = base.trace(x[:1], Context.seeded(0, 1)).names
    if len(views) < 2:
        raise TargetError(
            f"{spec.target} has one output, but an exit game needs several exits. Return a list "
            "of logits, one per exit; `attach_exits(net, {'layer name': head})` adds exits to an "
            "ordinary network."
        )
    actions(spec.subsets, len(views))  # raises if there are too many subsets
    built_on = _images_of_game(spec, len(x))
    # Several exits are expected here, so this finding of the check is no warning.
    expected = SymptomName.SEVERAL_EXITS
    findings = tuple(finding for finding in probed.findings if finding.name is not expected)
    return PreparedGame(spec, base, views, x, y, built_on, data.name, findings)


def _space(spec: GameSpec) -> Ball:
    return Ball(NORMS[spec.threat.norm], parse_radius(spec.threat.radius))


def _with_gradients(probed: Probed, name: str) -> Defense:
    if probed.defense.grants != "gradient":
        raise TargetError(
            f"{name} gives {probed.defense.grants} access only, but the attacks of the game need "
            "gradients. Use an nn.Module, or a Defense with differentiable exits."
        )
    return probed.defense


def _images_of_game(spec: GameSpec, images: int) -> int:
    built_on = round(spec.split * images)
    if not 0 < built_on < images:
        raise SpecError(
            f"a share of {spec.split:g} of {count(images, 'image')} leaves {built_on} to build the "
            f"game and {images - built_on} to evaluate strategies; both parts need at least one. "
            "Use more images with --n, or another --split."
        )
    return built_on
