"""The functions of the package that combine audits, runs and reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from saddlepoint.attacks.base import Attack
from saddlepoint.attacks.losses import Loss, cross_entropy
from saddlepoint.attacks.spaces import Linf
from saddlepoint.audits import Audit, AuditRequest
from saddlepoint.audits.comparison import Comparison
from saddlepoint.audits.curve import Curve, MakeBall, accuracy_curve, spaces_of
from saddlepoint.audits.inputs import (
    AnyTarget,
    AnyThreat,
    read_data,
    read_defense,
    read_target,
    read_threat,
    target_name,
)
from saddlepoint.audits.keywords import explained
from saddlepoint.audits.planning.budget import Budget
from saddlepoint.audits.probes.hidden import with_hidden
from saddlepoint.audits.probes.probe import measure_traits
from saddlepoint.audits.probes.probe_target import ProbeTarget
from saddlepoint.audits.probes.rare_coupling import with_rare_coupling
from saddlepoint.audits.probes.traits import Traits
from saddlepoint.audits.profile import EngineOption
from saddlepoint.audits.single_attack import attack_points
from saddlepoint.audits.verdict import Verification
from saddlepoint.defenses import Answer
from saddlepoint.evaluation import Adversary, Outcomes
from saddlepoint.evaluation import outcomes as outcomes_of
from saddlepoint.evaluation.referee import Progress
from saddlepoint.reports import html
from saddlepoint.reports.run import run_and_report
from saddlepoint.runs.cache import Watch
from saddlepoint.runs.interactive import progress_watch
from saddlepoint.runs.verify import confirmed
from saddlepoint.runs.watches import as_watches


@explained
def audit(
    target: AnyTarget,
    x: object,
    y: object = None,
    *,
    threat: AnyThreat = Linf(8 / 255),  # noqa: B008
    budget: Budget = "standard",
    adversaries: Sequence[Adversary] = (),
    extra: Sequence[Adversary] = (),
    n: int | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    device: str | torch.device | None = None,
    batch_size: int = 128,
    name: str | None = None,
    claim: float | None = None,
    allow_unusual: bool = False,
    engine: EngineOption = "auto",
    workers: int | None = None,
    threads: int | None = None,
    watch: Watch | Sequence[Watch] | None = None,
    progress: bool | None = None,
) -> Audit:
    """Measure the robust accuracy of a target and judge the estimate.

    Args:
        target: an nn.Module from pixels in [0, 1] to logits, a `Defense`, any callable on batches,
            on which only attacks without gradients are possible, or the path of an ONNX file.
        x: clean images, [N, ...], in [0, 1]: a tensor, array or list. Without `y` also a data
            loader, a dataset, an iterable of batches (x, y), or the name of a data set.
        y: labels, [N]: a tensor, array or list.
        threat: the threat model, its perturbation set, or an Linf radius such as "8/255"; default:
            Linf with radius 8/255.
        budget: "quick", "standard" or "thorough".
        adversaries: replace those that the budget would compose.
        extra: further adversaries beside those, such as `External` or `Points`.
        n: number of images from the start; default: all.
        seed: random seed.
        out: a folder. Every finished cell is stored there, the same call continues where it was
            stopped, and record and report are written.
        device: where images and model are moved; default: where they are.
        batch_size: most images per call of the target. A cell may have several batches.
        name: of the target; default: its class.
        claim: a robust accuracy to test, 0.62 for 62 %. If it is refuted, the verdict is
            *overstated*.
        allow_unusual: audit even if the clean accuracy or the radius looks like a mistake, such as
            shifted labels, missing normalization or a radius of 8 for pixels in [0, 1].
        engine: "auto": attacks run on a copy of an ordinary net with folded batch normalization if
            that saves time, with channels last where that suits its layers; all points are
            evaluated on the net itself. "channels-last": a copy in that layout in any case. "off":
            attacks run on the net itself.
        workers: number of processes; default: one per core, if they save time. The results have
            the same bytes. 1: this process computes everything.
        threads: torch threads per cell. Another number changes the rounding of the results;
            default: one if several processes can be used, otherwise the number that torch uses.
        watch: follows progress: one object or several, such as `saddlepoint.runs.TensorBoard`.
        progress: show a progress bar; default: in terminals and notebooks.

    Returns:
        The audit. `robust_accuracy` is an upper bound, `verdict` says whether it is credible.

    Raises:
        TargetError: the data or the target violates a rule that every attack relies on, or they
            look like a mistake (`allow_unusual`).
    """
    images, labels = read_data(x, y, n=n)
    if device is not None:
        images = images.to(device)
        labels = labels.to(device)
    request = AuditRequest(
        read_target(target, device),
        images,
        labels,
        read_threat(threat),
        budget=budget,
        adversaries=tuple(adversaries),
        extra=tuple(extra),
        seed=seed,
        batch_size=batch_size,
        name=name or target_name(target),
        claim=claim,
        allow_unusual=allow_unusual,
        engine=engine,
    )
    with progress_watch(progress) as bar:
        watches = (*bar, *as_watches(watch))
        return run_and_report(request, out, watches, workers=workers, threads=threads)


@explained
def probe(
    target: AnyTarget,
    x: object,
    y: object = None,
    *,
    threat: AnyThreat = Linf(8 / 255),  # noqa: B008
) -> Traits:
    """Measure the traits of a target on the first images. It is not attacked and not changed.

    Args:
        target: an nn.Module, a `Defense`, a callable on batches, or the path of an ONNX file.
        x: clean images, [N, ...], in any form that `audit` accepts; the first 16 are used, 8 for a
            defense that adapts.
        y: labels, [N].
        threat: the threat model, its perturbation set, or an Linf radius such as "8/255", which
            determines step sizes; default: Linf with radius 8/255.

    Returns:
        All traits with evidence. `"random" in traits` tests for presence.

    Raises:
        TargetError: target or data violates a rule that every attack relies on.
    """
    model = read_threat(threat)
    images, labels = model.images(*read_data(x, y))
    probed = ProbeTarget.of(read_target(target), images, labels, model.space)
    return with_hidden(probed, with_rare_coupling(probed, measure_traits(probed), images))


@explained
def evaluate(
    target: AnyTarget,
    adversaries: Sequence[Adversary],
    x: object,
    y: object = None,
    *,
    threat: AnyThreat,
    answers: Mapping[str, Answer] | None = None,
    seed: int = 0,
    batch_size: int = 128,
    progress: Progress | None = None,
) -> Outcomes:
    """Evaluate a target under several adversaries.

    A target that declares nothing is called a few times first, to measure whether it is randomized
    and whether rows of a batch influence each other.

    Args:
        target: a `Defense`, an nn.Module, a callable on batches, or the path of an ONNX file.
        adversaries: at least one adversary; each attacks all examples.
        x: clean inputs, [N, ...], in any form that `audit` accepts.
        y: labels, [N].
        threat: the threat model, its perturbation set, or an Linf radius such as "8/255".
        answers: the outputs to evaluate, by name; None: the answer of the defense, named "final".
        seed: seed of all random keys.
        batch_size: examples per batch.
        progress: called with the number of examples after every batch.

    Returns:
        The outcomes of all adversaries, answers and examples.

    Raises:
        TargetError: the target or its data violates a rule that every attack relies on.
        ValueError: there are no adversaries.
        PermissionError: an adversary needs more access than is granted.
    """
    model = read_threat(threat)
    images, labels = model.images(*read_data(x, y))
    return outcomes_of.evaluate(
        read_defense(target, images, labels, model.space),
        adversaries,
        images,
        labels,
        threat=model,
        answers=answers,
        seed=seed,
        batch_size=batch_size,
        progress=progress,
    )


@explained
def attack(
    target: AnyTarget,
    x: object,
    y: object,
    *,
    threat: AnyThreat = Linf(8 / 255),  # noqa: B008
    method: Attack[Any] | None = None,
    loss: Loss = cross_entropy,
    seed: int = 0,
) -> Tensor:
    """Adversarial points of one attack on one batch, without an evaluation.

    It can be used in a training loop: a module runs in eval mode and has its modes again
    afterwards, and no `.grad` changes. Nothing is measured: use `audit` for numbers.

    Args:
        target: an nn.Module, a `Defense`, a callable on batches, or the path of an ONNX file.
        x: clean images, [N, ...]: a tensor, array or list.
        y: labels, [N].
        threat: the threat model, its perturbation set, or an Linf radius such as "8/255".
        method: the attack, such as `PGD(steps=10)`; default: `PGD()`, or `Square(1000)` if the
            target has no gradients.
        loss: per-example loss that is maximized; default: cross-entropy.
        seed: of the random start. In a training loop, pass the number of the step.

    Returns:
        One point per image, [N, ...], inside of the perturbation set.

    Raises:
        TargetError: data or outputs violate a rule that every attack relies on.
    """
    images, labels = read_data(x, y)
    return attack_points(
        target, images, labels, read_threat(threat), method=method, loss=loss, seed=seed
    )


@explained
def curve(
    target: AnyTarget,
    x: object,
    y: object = None,
    *,
    radii: Sequence[float | str],
    norm: MakeBall = Linf,
    steps: int = 100,
    n: int | None = None,
    seed: int = 0,
    batch_size: int = 128,
) -> Curve:
    """Upper bounds of robust accuracy at several radii, at little more than the cost of one.

    FMN minimizes the perturbation of every image once. At each radius the referee evaluates the
    nearest points, and PGD continues from them on images that are still classified correctly.

    Args:
        target: a deterministic target whose rows are independent, in any form that `audit` accepts.
        x: clean images, in any form that `audit` accepts.
        y: labels, [N].
        radii: at least one radius, such as ["1/255", "2/255", "4/255"].
        norm: `Linf` (default), `L2` or `L1`.
        steps: steps of FMN; PGD takes a fifth of them at each radius.
        n: number of images from the start; default: all.
        seed: of all random keys.
        batch_size: images per batch.

    Returns:
        The curve; `curve.plot()` draws it.

    Raises:
        TargetError: the target or its data violates a rule that every attack relies on.
        ValueError: the target is randomized or its rows are coupled.
    """
    spaces = spaces_of(radii, norm)
    images, labels = read_data(x, y, n=n)
    return accuracy_curve(
        read_defense(target, images, labels, spaces[-1]),
        images,
        labels,
        spaces,
        name=target_name(target),
        steps=steps,
        seed=seed,
        batch_size=batch_size,
    )


@explained
def compare(
    targets: Mapping[str, AnyTarget],
    x: object,
    y: object = None,
    *,
    threat: AnyThreat = Linf(8 / 255),  # noqa: B008
    budget: Budget = "standard",
    adversaries: Sequence[Adversary] = (),
    n: int | None = None,
    seed: int = 0,
    batch_size: int = 128,
    progress: bool | None = None,
) -> Comparison:
    """Audit several targets on the same images and test every two of them image by image.

    Args:
        targets: at least two targets by name.
        x: clean images, in any form that `audit` accepts.
        y: labels, [N].
        threat: the threat model, its perturbation set, or an Linf radius such as "8/255".
        budget: "quick", "standard" or "thorough".
        adversaries: replace those that the budget would compose.
        n: number of images from the start; default: all.
        seed: random seed.
        batch_size: images per cell.
        progress: show a progress bar; default: in terminals and notebooks.

    Returns:
        All audits, and for every two targets McNemar's exact test, adjusted for their number.

    Raises:
        ValueError: there are fewer than two targets.
        TargetError: a target or the data violates a rule that every attack relies on.
    """
    if len(targets) < 2:
        raise ValueError(f"a comparison needs at least two targets, got {len(targets)}.")
    images, labels = read_data(x, y, n=n)
    return Comparison.of(
        {
            name: audit(
                target,
                images,
                labels,
                threat=threat,
                budget=budget,
                adversaries=adversaries,
                seed=seed,
                batch_size=batch_size,
                name=name,
                progress=progress,
            )
            for name, target in targets.items()
        }
    )


def verify(audit: Audit) -> Verification:
    """Evaluate every worst point of a stored audit again, in a new process.

    The target is loaded from the specification of its run, so its code runs. A model in memory
    cannot be loaded again, so its audit cannot be verified, even if it was stored with `out=`:
    write a factory and run `saddlepoint audit file.py:factory --out FOLDER`.

    Args:
        audit: the audit that `Audit.load(FOLDER)` returns.

    Returns:
        All checks.

    Raises:
        ValueError: the audit was not stored, or was of a model in memory.
        VerificationError: a check failed.
    """
    return confirmed(audit)


def write_report(audit: Audit, path: str | Path) -> Path:
    """Write an audit as one self-contained HTML page.

    Args:
        audit: the audit.
        path: the file.

    Returns:
        The file.
    """
    return html.write_report(audit, Path(path))
