"""Trained networks and defenses on disk: a JSON record and a checked weights file per name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from safetensors.torch import load as read_tensors
from safetensors.torch import save as write_tensors
from torch import Tensor, nn

from saddlepoint.zoo.deq import digits_deq_exact, digits_deq_unrolled
from saddlepoint.zoo.nets import DigitsCNN
from saddlepoint.zoo.nets.dann import digits_two_heads
from saddlepoint.zoo.nets.digits import digits_small
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
        digits_small,
    )
}


@dataclass(frozen=True)
class TrainingCheck:
    """Accuracies after training, by which a rebuilt model is compared with the packaged one.

    They are no estimate of robust accuracy: `saddlepoint.zoo.audited` has that.
    """

    data: str
    n: int  # number of examples
    p: str  # the norm: "2", "inf"
    radius: float  # in units of the input
    seed: int
    accuracy: Mapping[str, float]  # by adversary; "clean" is without an attack
    command: str


@dataclass(frozen=True)
class Entry:
    """The record of a trained network, or of a defense around one: a JSON file beside its weights.

    Attributes:
        name: The name of the model.
        net: For a network, its architecture: one of `NETS`. For a defense, the name of the network
            that it protects.
        parameters: Number of parameters. For a defense, without those of the network.
        training_radius: The radius of adversarial training; 0 for standard training.
        seed: The seed of the training.
        epoch: The epoch that was kept. For a defense 0, because it keeps the last one.
        sha256: The digest of the weights file; empty if there is none.
        check: The accuracies under a few attacks after training.
        recipe: The description of the training recipe.
        residuals: For a network that solves for a fixed point: the mean residual on the dev set
            after each epoch.
        defense: The class of a defense; empty for a network.
    """

    name: str
    net: str
    parameters: int
    training_radius: float
    seed: int
    epoch: int
    sha256: str
    check: TrainingCheck
    recipe: Mapping[str, Any]
    residuals: tuple[float, ...] = ()
    defense: str = ""


def names(folder: str | Path = WEIGHTS) -> tuple[str, ...]:
    """Return the names of all models in a folder; by default those of the package."""
    return tuple(sorted(path.stem for path in Path(folder).glob("*.json")))


def entry(name: str, folder: str | Path = WEIGHTS) -> Entry:
    """Read the record of a model: how it was trained, and the accuracies after training.

    Args:
        name: One of `names(folder)`.
        folder: The folder with the records; by default that of the package.

    Raises:
        ValueError: There is no model of this name, or its record cannot be read.
    """
    known = names(folder)
    if name not in known:
        near = get_close_matches(name.lower().replace("_", "-"), known, n=1, cutoff=0.4)
        advice = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"no model is called {name!r}.{advice} Known: {', '.join(known) or 'none'}."
        )
    path = Path(folder) / f"{name}.json"
    try:
        record = _migrated(json.loads(path.read_text(encoding="utf-8")))
        typed = {
            "check": TrainingCheck(**record["check"]),
            "residuals": tuple(record.get("residuals", ())),
        }
        return Entry(**{**record, **typed})
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{path} is not the record of a model ({error}). "
            "Install the package again, or train the model again."
        ) from error


def _migrated(record: dict[str, Any]) -> dict[str, Any]:
    """A record in the form of this version; before 0.2 the check also had a worst case."""
    if "measured" in record:
        check = dict(record.pop("measured"))
        accuracy = {key: value for key, value in check["accuracy"].items() if key != "worst case"}
        record["check"] = {**check, "accuracy": accuracy}
    return record


def weights(name: str, folder: str | Path = WEIGHTS) -> dict[str, Tensor]:
    """Read the tensors of a model and check them against the digest in its record.

    Args:
        name: One of `names(folder)`.
        folder: The folder with the records; by default that of the package.

    Returns:
        The tensors by name; empty if the model has no weights file.

    Raises:
        FileNotFoundError: The weights file is missing.
        ValueError: There is no model of this name, or the file is not the one that was measured.
    """
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
            f"{path} is not the file that was measured: expected SHA-256 {record.sha256}, "
            f"found {found}. Install the package again, or train the model again."
        )
    return dict(read_tensors(content))


def load(name: str, folder: str | Path = WEIGHTS) -> nn.Module:
    """Return a network with its trained weights, in eval mode: `load("digits-pgd")`.

    Args:
        name: The name of a network, not of a defense.
        folder: The folder with the records; by default that of the package.

    Raises:
        FileNotFoundError: The weights file is missing.
        ValueError: There is no network of this name, or its files are damaged.
    """
    record = entry(name, folder)
    if record.defense:
        raise ValueError(
            f"{name} is a defense, {record.defense}, on the network {record.net}. "
            f"target({name!r}) returns the defense, load({record.net!r}) the network."
        )
    if record.net not in NETS:
        raise ValueError(
            f"{name} is recorded as the architecture {record.net}, but the known ones are "
            f"{', '.join(NETS)}. Update the package."
        )
    net = NETS[record.net]()
    net.load_state_dict(weights(name, folder))
    return net.eval()


def store(net: nn.Module, record: Entry, folder: str | Path) -> Entry:
    """Write the weights and the record of a network.

    Args:
        net: The network.
        record: The record; its digest is filled in.
        folder: Where to write. Missing folders are created.

    Returns:
        The record with the digest of the weights.

    Raises:
        ValueError: The architecture is not one of `NETS`.
    """
    if record.net not in NETS:
        raise ValueError(
            f"{record.name} has the architecture {record.net}; only {', '.join(NETS)} can be "
            "loaded by name. Add it to NETS."
        )
    return keep(net.state_dict(), record, folder)


def keep(tensors: Mapping[str, Tensor], record: Entry, folder: str | Path) -> Entry:
    """Write tensors and a record; without tensors only the record is written.

    Args:
        tensors: The weights by name; may be empty.
        record: The record; its digest is filled in.
        folder: Where to write. Missing folders are created.

    Returns:
        The record with the digest of the weights.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    sha256 = ""
    if tensors:
        content = write_tensors(
            {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
        )
        (folder / f"{record.name}.safetensors").write_bytes(content)
        sha256 = hashlib.sha256(content).hexdigest()
    record = replace(record, sha256=sha256)
    (folder / f"{record.name}.json").write_text(
        json.dumps(asdict(record), indent=2) + "\n", encoding="utf-8"
    )
    return record
