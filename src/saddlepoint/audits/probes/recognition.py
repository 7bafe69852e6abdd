"""What an audit recognized in a target: libraries, layers and behavior that decide the attacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from saddlepoint.audits.planning.facts import TargetFacts
from saddlepoint.audits.probes.probe_target import ProbeTarget
from saddlepoint.audits.probes.traits import TraitName
from saddlepoint.audits.target.admission import Target
from saddlepoint.audits.target.copy import copy_target
from saddlepoint.defenses import BlackBox, Defense, MultiExit
from saddlepoint.defenses.reachable import reachable
from saddlepoint.phrases import count, names
from saddlepoint.rng import seeded_globals

_BatchNorm = nn.modules.batchnorm._BatchNorm
_Dropout = nn.modules.dropout._DropoutNd
_LIBRARIES = {
    "timm": "timm model",
    "torchdeq": "torchdeq layer",
    "torchvision": "torchvision model",
    "transformers": "Hugging Face model",
}
# What the presence of a trait means to a reader, in the order of the page.
_BEHAVIOR: Mapping[TraitName, str] = {
    TraitName.RANDOM: "randomness",
    TraitName.COUPLED: "rows of a batch influence each other",
    TraitName.ADAPTS: "test-time adaptation",
    TraitName.OPTIMIZES: "optimization at test time",
    TraitName.STATE: "state between calls",
    TraitName.SITES: "named steps",
    TraitName.PROBABILITIES: "probabilities as outputs",
    TraitName.QUANTIZED: "piecewise constant outputs",
    TraitName.ZERO_GRADIENTS: "vanishing gradients",
    TraitName.NO_GRADIENT: "no gradients",
}


@dataclass(frozen=True)
class Recognized:
    """One thing that an audit recognized, with evidence."""

    name: str
    evidence: str


def recognize(target: Target, probed: ProbeTarget, facts: TargetFacts) -> tuple[Recognized, ...]:
    """Everything that was recognized: kind of the target, layers, exits, solvers, behavior.

    Args:
        target: the target as it was given.
        probed: the target of the probes, with a few images.
        facts: what probes measured.
    """
    return (
        *_kind(target, probed.defense),
        *_libraries(_modules(target)),
        *_modes(target, probed),
        *_structure(probed.defense, facts),
        *_behavior(facts),
    )


def _kind(target: Target, defense: Defense) -> Iterator[Recognized]:
    name = type(target).__name__
    if isinstance(target, Defense) and not isinstance(target, MultiExit):
        yield Recognized("defense", f"{name} declares what it does at test time")
    elif isinstance(defense, BlackBox):
        yield Recognized("black box", "a function or file without gradients")
    elif isinstance(target, nn.Module):
        yield Recognized("PyTorch module", name)


def _libraries(layers: Sequence[nn.Module]) -> Iterator[Recognized]:
    for package, title in _LIBRARIES.items():
        found = sorted({type(layer).__name__ for layer in layers if _package(layer) == package})
        if found:
            shown = f"{names(found[:3])}{' and others' if len(found) > 3 else ''}"
            yield Recognized(title, f"{shown} of {package}")


def _modes(target: Target, probed: ProbeTarget) -> Iterator[Recognized]:
    """Batch normalization and dropout, by the mode in which a call of the target runs them."""
    if isinstance(probed.unused_copy, nn.Module):
        training = _during_call(probed.unused_copy, probed.x)
    else:
        training = [(layer, layer.training) for layer in _modules(target)]
    norms = [
        active or layer.running_mean is None
        for layer, active in training
        if isinstance(layer, _BatchNorm)
    ]
    if any(norms):
        evidence = f"{count(sum(norms), 'layer')} with the statistics of the batch"
        yield Recognized("batch normalization in training mode", evidence)
    if not all(norms):
        evidence = f"{count(len(norms) - sum(norms), 'layer')} with stored statistics"
        yield Recognized("batch normalization", evidence)
    dropped = sum(active for layer, active in training if isinstance(layer, _Dropout))
    if dropped:
        yield Recognized("dropout in training mode", count(dropped, "layer"))


def _during_call(module: nn.Module, x: Tensor) -> list[tuple[nn.Module, bool]]:
    """Layers with two modes, and whether a copy of the module runs them in training mode."""
    used = copy_target(module)
    layers = [layer for layer in used.modules() if isinstance(layer, _BatchNorm | _Dropout)]
    if not layers:
        return []
    modes = {id(layer): layer.training for layer in layers}

    def note(layer: nn.Module, inputs: object) -> None:  # noqa: ARG001
        modes[id(layer)] = layer.training

    for layer in layers:
        layer.register_forward_pre_hook(note)
    with torch.no_grad(), seeded_globals(0, x.device):
        used(x)
    return [(layer, modes[id(layer)]) for layer in layers]


def _structure(defense: Defense, facts: TargetFacts) -> Iterator[Recognized]:
    if isinstance(defense, MultiExit):
        yield Recognized("early exits", "declared: the network returns one output per exit")
    elif facts.exits is not None:
        found = count(len(facts.exits), "output of a classifier", "outputs of classifiers")
        yield Recognized("early exits", f"{found} inside, from which it answers")
    if facts.solves:
        yield Recognized("fixed-point solver", f"at {names(sorted(facts.solves))}")


def _behavior(facts: TargetFacts) -> Iterator[Recognized]:
    for name, title in _BEHAVIOR.items():
        if facts.has(name):
            yield Recognized(title, facts.traits[name].evidence)


def _modules(target: Target) -> list[nn.Module]:
    """All modules that the code of the target can reach, each once."""
    found: dict[int, nn.Module] = {}
    for reached in reachable(target):
        if isinstance(reached.value, nn.Module):
            found |= {id(layer): layer for layer in reached.value.modules()}
    return list(found.values())


def _package(layer: nn.Module) -> str:
    return type(layer).__module__.partition(".")[0]
