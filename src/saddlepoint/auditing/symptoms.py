"""Signs that a number cannot be trusted, found before or after the attacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from saddlepoint.attack.apgd import APGD
from saddlepoint.attack.loss import cross_entropy
from saddlepoint.attack.nearest import MINIMUM_NORM
from saddlepoint.attack.oracle import grants
from saddlepoint.auditing.answering import AtAnswer, answers_otherwise
from saddlepoint.auditing.cell import Group, Job
from saddlepoint.auditing.result import Row, Symptom
from saddlepoint.describe import Plain, describe
from saddlepoint.game import Adversary, Direct, Stand, Transfer
from saddlepoint.gradients import Backprop, EoT, Estimator

_SANITY_ROWS, _SANITY_STEPS = 64, 20
_STEEP = 0.5  # of the mean: on the way to a limit a fifth of it is still ahead, see `Ascent.pace`


def signs(job: Job, adversaries: Sequence[Adversary], groups: Sequence[Group], rows: Sequence[Row]) -> Iterator[Symptom]:
    """What the attacks themselves give away. There is a row for every adversary but the first, the clean images."""
    n = len(job.x)
    seeing = [a for a, sent in enumerate(adversaries) if sent.needs == "gradient" or isinstance(sent, Transfer)]
    blind = [a for a, sent in enumerate(adversaries) if a not in seeing and not isinstance(sent, Stand)]
    taken = _left(groups, [0, *seeing]) - _left(groups, [0, *seeing, *blind])  # in whatever order they were sent
    if seeing and taken * n >= 2 and taken >= 0.01:
        yield Symptom(
            "black box beats white box", "serious",
            f"attacks without gradients took {100 * taken:.1f} points from what gradient attacks had left: gradients are masked.",
        )  # fmt: skip
    last = rows[-1]
    if seeing and not blind and last.gain * n >= 2 and last.gain >= 0.01:
        yield Symptom(
            "not converged", "warning",
            f"the last attack, {last.name}, still took {100 * last.gain:.1f} points: a larger budget would take more.",
        )  # fmt: skip
    yield from _rising(adversaries, rows)
    copies = sum(row.copies for row in rows)
    if copies:
        yield Symptom(
            "clean copies", "warning", f"{copies} proposals were the clean image itself: the attack could not move there."
        )
    if job.defense.rejects:
        yield Symptom("rejections", "warning", _rejections(groups))
    if job.defense.unit != "example":
        yield Symptom(
            "dependent images", "note",
            f"images of one {job.defense.unit} are answered together; the interval takes them for independent and is too narrow.",
        )  # fmt: skip
    split = max(int(e.batch.amax()) + 1 for g in groups for e in g.outcomes.episodes) if job.defense.unit == "example" else 1
    if split > 1:
        yield Symptom("memory", "note", f"memory ran out: batches of {job.batch_size} were attacked in up to {split} parts.")
    claimed = torch.cat([g.outcomes.worst_case_per_example()[0] for g in groups])
    changed = int((claimed != torch.cat([g.verdict.correct[0] for g in groups])).sum())
    if changed and not job.defense.random:
        yield Symptom(
            "re-scoring disagrees", "serious",
            f"{changed} of {n} answers changed when the same points were asked about again: the target keeps state or hides "
            "randomness.",
        )  # fmt: skip


def _rejections(groups: Sequence[Group]) -> str:
    """What stands behind an accuracy in which a refusal counts as right."""
    attacked, beside = (100 * torch.cat([g.verdict.rejected[k, 0] for g in groups]).mean().item() for k in (0, 1))
    clean = 100 * torch.cat([g.outcomes.episodes[0].rejected[0, 0] for g in groups]).mean().item()
    return (
        f"a refusal counts as right, and the defence refuses {clean:.1f} % of clean images. Of the worst points it refuses "
        f"{attacked:.1f} %, and as it is when it meets them it would refuse {beside:.1f} % of the clean images they were made from."
    )


def _rising(adversaries: Sequence[Adversary], rows: Sequence[Row]) -> Iterator[Symptom]:
    """Was the attack that did most harm still climbing when it ended? Of several that did, one that was not is enough.

    An attack that looks for the nearest mistake does not climb, and its last point may be its only one in the set. One that left
    nothing standing ended because it had won.
    """
    most = min(row.robust_accuracy for row in rows)
    sent = [(row, adversary) for row, adversary in zip(rows, adversaries[1:], strict=True) if row.robust_accuracy == most]
    paces = [row.ascent.pace or 0.0 for row, adversary in sent if not _kinds(describe(adversary)) & MINIMUM_NORM]
    if most > 0 and len(paces) == len(sent) and min(paces) >= _STEEP:
        yield Symptom(
            "still rising", "warning",
            f"the strongest attack, {sent[0][0].name}, was still climbing when it ended: the last quarter of its passes was "
            f"{100 * paces[0]:.0f} % as steep as its whole climb. Give it more steps or queries, or the audit a larger budget.",
        )  # fmt: skip


def _kinds(described: Plain) -> frozenset[str]:
    """The names of all classes inside."""
    if isinstance(described, list):
        return frozenset[str]().union(*(_kinds(item) for item in described))
    if isinstance(described, dict):
        return frozenset({str(described.get("kind", ""))}).union(*(_kinds(item) for item in described.values()))
    return frozenset()


def _left(groups: Sequence[Group], adversaries: Sequence[int]) -> float:
    """The accuracy that is left when these alone are sent."""
    return float(torch.cat([g.outcomes.only(adversaries).worst_case_per_example()[0] for g in groups]).mean())


def unbounded(job: Job) -> Iterator[Symptom]:
    """With half the box as its radius an attack can turn any image grey: a defence that survives that hides its gradients."""
    if not (grants(job.defense.grants, "gradient") and grants(job.threat.access, "gradient")):
        return
    space, d = job.threat.space, job.x[0].numel()
    radius = (space.box[1] - space.box[0]) / 2 * d ** (1 / space.p)
    if radius <= space.radius:
        return
    estimator: Estimator = EoT(8) if job.defense.random else Backprop()
    attack: Adversary = Direct("unbounded", APGD(_SANITY_STEPS), loss=cross_entropy, estimator=estimator)
    attack = AtAnswer(attack) if answers_otherwise(job.defense) else attack
    wide = replace(job, threat=replace(job.threat, space=replace(space, radius=radius), queries=None))
    left = wide.play(attack, torch.arange(min(_SANITY_ROWS, len(job.x)), device=job.x.device))
    accuracy = float(left.correct.mean())
    if accuracy > 0.1:
        yield Symptom(
            "unbounded attack fails", "serious",
            f"{100 * accuracy:.0f} % of {left.correct.shape[1]} images survive {_SANITY_STEPS} steps with radius {radius:.3g}, "
            "which allows a grey image: the gradients do not lead anywhere.",
        )  # fmt: skip
