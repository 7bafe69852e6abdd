"""Trained networks and defenses by name: weights that are checked before use, beside the record of how they came about."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from safetensors.torch import load as read_tensors
from safetensors.torch import save as write_tensors
from torch import Tensor, nn

from saddlepoint.defenses import Defense
from saddlepoint.zoo.deq import digits_deq_exact, digits_deq_unrolled
from saddlepoint.zoo.nets import DigitsCNN
from saddlepoint.zoo.nets.dann import digits_two_heads
from saddlepoint.zoo.nets.lenet import digits_lenet
from saddlepoint.zoo.nets.resnet import cifar_exits, digits_exits, digits_resnet

WEIGHTS = Path(__file__).parent / "weights"
NETS: Mapping[str, Callable[[], nn.Module]] = {
    net.__name__: net
    for net in (
        DigitsCNN,
        digits_exits,
        cifar_exits,
        digits_deq_exact,
        digits_deq_unrolled,
        digits_resnet,
        digits_lenet,
        digits_two_heads,
    )
}


@dataclass(frozen=True)
class Measured:
    """What a model scored, on what, and the command that measured it."""

    data: str
    n: int
    p: str  # the norm: "2", "inf"
    radius: float  # in units of the input
    seed: int
    accuracy: Mapping[
        str, float
    ]  # by adversary; "clean" is none, "worst case" sends the strongest to every example
    command: str


@dataclass(frozen=True)
class Entry:
    """The record of a trained network, or of a defense on one: a JSON file beside its weights."""

    name: str
    net: str  # one of NETS; of a defense, the entry of the network it stands on
    parameters: int  # of a defense: those that it brings along, beside the network's
    training_radius: float  # 0 where no adversary took part
    seed: int
    epoch: int  # the one that was kept; of a defense 0, since it keeps the last
    sha256: str  # of the weights file; empty where there is none
    measured: Measured
    recipe: Mapping[str, Any]
    residuals: tuple[
        float, ...
    ] = ()  # of a network that solves for a fixed point: mean on the dev set, epoch by epoch
    defense: str = ""  # the class of a defense; empty for a network


@runtime_checkable
class Defended(Protocol):
    """A network that comes with a defense of its own: a solver, a strategy over exits."""

    @property
    def defense(self) -> Defense: ...


def names(folder: str | Path = WEIGHTS) -> tuple[str, ...]:
    """What `load` can load."""
    return tuple(sorted(path.stem for path in Path(folder).glob("*.json")))


def entry(name: str, folder: str | Path = WEIGHTS) -> Entry:
    """The record of a model: how it was trained, and what it scored."""
    known = names(folder)
    if name not in known:
        near = get_close_matches(name.lower().replace("_", "-"), known, n=1, cutoff=0.4)
        advice = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"no model is called {name!r}.{advice} Known: {', '.join(known) or 'none'}."
        )
    path = Path(folder) / f"{name}.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        lists = {
            "measured": Measured(**record["measured"]),
            "residuals": tuple(record.get("residuals", ())),
        }
        return Entry(**{**record, **lists})
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{path} is no record of a model ({error}). Install the package again, or train the model again."
        ) from error


def weights(name: str, folder: str | Path = WEIGHTS) -> dict[str, Tensor]:
    """The tensors of a model; those that are not the recorded ones are refused."""
    record = entry(name, folder)
    path = Path(folder) / f"{name}.safetensors"
    if not record.sha256:
        return {}
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing. Install the package again, or train the model again."
        )
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != record.sha256:
        raise ValueError(
            f"{path} is not the file that was measured: expected SHA-256 {record.sha256}, found {found}. "
            "Install the package again, or train the model again."
        )
    return dict(read_tensors(content))


def load(name: str, folder: str | Path = WEIGHTS) -> nn.Module:
    """The network with its weights, in eval mode: `load("digits-pgd")`."""
    record = entry(name, folder)
    if record.defense:
        raise ValueError(
            f"{name} is a defense, {record.defense}, on the network {record.net}. "
            f"target({name!r}) makes the defense, load({record.net!r}) the network."
        )
    if record.net not in NETS:
        raise ValueError(
            f"{name} is recorded as a {record.net}, but the networks here are {', '.join(NETS)}. Update the package."
        )
    net = NETS[record.net]()
    net.load_state_dict(weights(name, folder))
    return net.eval()


def target(name: str, folder: str | Path = WEIGHTS) -> nn.Module | Defense:
    """What an audit of that name attacks: a defense, a network's own defense if it has one, else the network."""
    record = entry(name, folder)
    if record.defense:
        # Not before it is asked for: some defenses learn at test time, by the training loop, which knows these models.
        from saddlepoint.zoo.embedded import kit

        # A defense that was trained into a folder stands on a network of that folder, or else on the package's.
        base = load(record.net, folder if record.net in names(folder) else WEIGHTS)
        return kit(name).defend(base, weights(name, folder))
    net = load(name, folder)
    return net.defense if isinstance(net, Defended) else net


def store(net: nn.Module, record: Entry, folder: str | Path) -> Entry:
    """A network's weights and record written into `folder`; the record returned carries their digest."""
    if record.net not in NETS:
        raise ValueError(
            f"{record.name} is a {record.net}; only {', '.join(NETS)} can be loaded by name. Add it to NETS."
        )
    return keep(net.state_dict(), record, folder)


def keep(tensors: Mapping[str, Tensor], record: Entry, folder: str | Path) -> Entry:
    """The same of any tensors; without tensors there is a record alone."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if tensors:
        content = write_tensors(
            {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
        )
        (folder / f"{record.name}.safetensors").write_bytes(content)
    record = replace(record, sha256=hashlib.sha256(content).hexdigest() if tensors else "")
    (folder / f"{record.name}.json").write_text(
        json.dumps(asdict(record), indent=2) + "\n", encoding="utf-8"
    )
    return record
