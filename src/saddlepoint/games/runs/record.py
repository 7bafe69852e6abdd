"""What was found out by a game, and how it is kept: `game.json` and `game.safetensors`, each of which shows if it was touched."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from saddlepoint.audits.result import Symptom
from saddlepoint.defenses import Subset, subset_name
from saddlepoint.evaluation.bootstrap import Estimate
from saddlepoint.runs.store import Store, sealed, sha
from saddlepoint.schema import Migrations, SchemaError, migrated

SCHEMA = 1
MIGRATIONS: Migrations = {}
JSON = "game.json"
TENSORS = "game.safetensors"
_DAMAGE = (
    json.JSONDecodeError,
    UnicodeDecodeError,
    TypeError,
    KeyError,
    AttributeError,
    IndexError,
    OSError,
    SafetensorError,
)
_PLAYED = 1e-9  # a probability below is rounding


class GameError(ValueError):
    """A record of a game that is missing, damaged or changed."""


@dataclass(frozen=True)
class Played:
    """One adversary, and what it cost."""

    name: str
    target: Subset | None  # the exits it attacks; None: the expected loss of a mix, or nothing
    forward: float  # passes per image
    backward: float
    seconds: float
    copies: int  # images for which it proposed the clean image itself


@dataclass(frozen=True)
class Exposed:
    """A mix of answers under attackers that know more and more, on images that did not build the game."""

    name: str
    mix: tuple[float, ...]  # [D]
    clean: Estimate
    restricted: float  # what the game promised, on its own images
    aimer: Estimate  # the game's best response
    expected_loss: Estimate  # ascends the expected loss of the mix
    per_image: Estimate  # the worst of all attacks, image by image


@dataclass(frozen=True)
class Solved:
    """A mix of the defender, the accuracy it is sure of on the images of the game, and how far from optimal it can be."""

    mix: tuple[float, ...]  # [D]
    value: float
    gap: float


@dataclass(frozen=True)
class GameRecord:
    """The outcome of a game on exits: the matrix, its equilibrium, and what strategies are worth on images it was not built on."""

    target: str
    threat: str
    data: str
    n: int  # images, of which the first `built_on` made the game
    built_on: int
    exits: int
    subsets: tuple[Subset, ...]  # [D] columns
    targets: tuple[
        Subset | None, ...
    ]  # [A] what each row attacks; None: the expected loss of a mix
    value: Estimate  # of the restricted game, with its bootstrap interval
    equilibrium: Solved  # NEED
    attacker: tuple[float, ...]  # [A] the attacker's equilibrium mix
    response: tuple[float, ...]  # [A] AIMER's best response to NEED
    mismatch: (
        float | None
    )  # R_mis at equilibrium; None where the attacker's mix holds a row that aims at no set of exits
    matched: int  # columns whose own set of exits was attacked
    beaten: int  # of these, where another row does more harm
    exploitability: float | None  # of the double oracle; None: all rows were played
    pure: Subset  # the best answer without a draw
    pure_value: float
    per_example: Solved  # against an attacker who picks a row for every image
    strategies: tuple[
        Exposed, ...
    ]  # NEED, the best pure answer, the mix of `per_example`, the last exit
    gains: Mapping[
        str, Estimate
    ]  # NEED less the best pure answer on the images that were scored, by attacker
    rows: tuple[Played, ...]  # [A]
    scored_rows: tuple[Played, ...]  # [R] the clean images first
    symptoms: tuple[Symptom, ...]
    seed: int
    spec: Mapping[str, Any]  # with all defaults
    passed: Mapping[str, Any]  # as it was asked for
    hashes: Mapping[str, str]  # SHA-256 of target and images
    versions: Mapping[str, str]
    command: str
    seconds: float
    correct: Tensor  # [A, D, N] bool
    scored: Tensor  # [R, D, M] bool
    run: str = ""  # the identity of the request it answers

    @property
    def payoff(self) -> Tensor:
        """[A, D] the defender's accuracy."""
        return self.correct.double().mean(-1)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(map(subset_name, self.subsets))

    @property
    def scored_on(self) -> int:
        return self.n - self.built_on

    def strategy(self, name: str) -> Exposed:
        """By its name; by the beginning of it, where it also names the answer."""
        return next(strategy for strategy in self.strategies if strategy.name.startswith(name))

    def exit_accuracy(self, row: int) -> tuple[float, ...]:
        """[L] the accuracy of each exit alone under a row of those that were scored."""
        right = self.scored[row].double().mean(-1)
        return tuple(
            float(right[self.subsets.index((number,))]) for number in range(1, self.exits + 1)
        )

    @property
    def all_exits_row(self) -> int:
        """Of the rows that were scored, the attack on all exits."""
        everything = tuple(range(1, self.exits + 1))
        return next(k for k, row in enumerate(self.scored_rows) if row.target == everything)

    def summary(self) -> str:
        """What NEED promises and what is left of it, in words."""
        need = self.strategy("NEED")
        pure = self.strategy("best pure")
        return (
            f"the restricted game has the value {self.value}; on other images NEED keeps {need.aimer} under AIMER and at most "
            f"{need.per_image} under an attacker who chooses per image, where the best pure answer, {subset_name(self.pure)}, "
            f"keeps {pure.aimer} and {pure.per_image}."
        )

    def record(self) -> dict[str, Any]:
        """Everything but the tensors, as JSON has it; the matrix is among it."""
        plain = {
            "schema": SCHEMA,
            "kind": "game",
            **{name: getattr(self, name) for name in (*_PLAIN, *_LISTS)},
            "value": self.value._asdict(),
            **{name: asdict(getattr(self, name)) for name in ("equilibrium", "per_example")},
            "strategies": [_exposed(strategy) for strategy in self.strategies],
            "gains": {name: gain._asdict() for name, gain in self.gains.items()},
            **{
                name: [asdict(row) for row in getattr(self, name)]
                for name in ("rows", "scored_rows", "symptoms")
            },
            **{name: dict(getattr(self, name)) for name in _MAPPINGS},
            "payoff": self.payoff.tolist(),
        }
        told: dict[str, Any] = json.loads(json.dumps(plain, allow_nan=False))
        return told

    def save(self, folder: Path) -> Path:
        """Write both files, the tensors first: a record stands for tensors that are there."""
        store = Store(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = save(
            {
                "payoff": self.payoff,
                "correct": self.correct.contiguous(),
                "scored": self.scored.contiguous(),
            }
        )
        store.keep(TENSORS, tensors)
        store.keep(JSON, sealed({**self.record(), "tensors": sha(tensors)}))
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> GameRecord:
        """Read what `save` wrote. A record or tensors that were changed since are refused."""
        place = Path(folder)
        record = read(place / JSON)
        try:
            tensors = (place / TENSORS).read_bytes()
            if sha(tensors) != record["tensors"]:
                raise GameError(
                    f"{place / TENSORS} is damaged: it does not have the hash that {JSON} recorded. Play the game again."
                )
            return cls._of(record, load(tensors))
        except _DAMAGE as error:
            raise GameError(
                f"{place} holds no whole game ({type(error).__name__}: {error}). Play the game again."
            ) from error

    @classmethod
    def _of(cls, record: dict[str, Any], tensors: Mapping[str, Tensor]) -> GameRecord:
        if not torch.equal(
            torch.tensor(record["payoff"], dtype=torch.float64),
            tensors["correct"].double().mean(-1),
        ):
            raise GameError(
                "the payoff of the record is not the mean of its outcomes. Play the game again."
            )
        fields: dict[str, Any] = {name: record[name] for name in (*_PLAIN, *_MAPPINGS)}
        fields |= {name: tuple(record[name]) for name in ("attacker", "response", "pure")}
        fields |= {
            name: Solved(**{**record[name], "mix": tuple(record[name]["mix"])})
            for name in ("equilibrium", "per_example")
        }
        fields |= {name: _read_rows(record[name]) for name in ("rows", "scored_rows")}
        return cls(
            **fields,
            subsets=tuple(tuple(subset) for subset in record["subsets"]),
            targets=tuple(tuple(target) if target else None for target in record["targets"]),
            value=Estimate(**record["value"]),
            strategies=tuple(_read_exposed(strategy) for strategy in record["strategies"]),
            gains={name: Estimate(**gain) for name, gain in record["gains"].items()},
            symptoms=tuple(Symptom(**symptom) for symptom in record["symptoms"]),
            correct=tensors["correct"],
            scored=tensors["scored"],
        )


_PLAIN = (
    "target", "threat", "data", "n", "built_on", "exits", "mismatch", "matched", "beaten", "exploitability", "pure_value", "seed",
    "command", "seconds", "run",
)  # fmt: skip
_LISTS = ("subsets", "targets", "attacker", "response", "pure")
_MAPPINGS = ("spec", "passed", "hashes", "versions")
_ESTIMATES = ("clean", "aimer", "expected_loss", "per_image")


def read(path: Path) -> dict[str, Any]:
    """The record alone, in the current schema; one that does not fit its seal is refused."""
    if not path.is_file():
        raise FileNotFoundError(
            f"no {path.name} in {path.parent}. Give the folder that `saddlepoint game --out` wrote."
        )
    try:
        text = path.read_bytes()
        record: dict[str, Any] = json.loads(text)
        if sealed({name: value for name, value in record.items() if name != "seal"}) != text:
            raise GameError(
                f"{path} is damaged or was changed: it does not fit its seal. Play the game again."
            )
        return migrated(record, MIGRATIONS, SCHEMA, str(path.parent))
    except SchemaError as error:
        raise GameError(str(error)) from None
    except _DAMAGE as error:
        raise GameError(
            f"{path} is damaged ({type(error).__name__}: {error}). Play the game again."
        ) from error


def support(mix: Sequence[float]) -> tuple[int, ...]:
    """What is played, the most frequent first."""
    return tuple(sorted((k for k, p in enumerate(mix) if p > _PLAYED), key=lambda k: -mix[k]))


def best_pure(record: GameRecord) -> tuple[int, ...]:
    """All columns, the one that is most accurate against its worst row first."""
    least = record.payoff.amin(0)
    return tuple(int(d) for d in least.argsort(descending=True, stable=True))


def shown(mix: Sequence[float], names: Sequence[str]) -> str:
    """'2+4 61 %, 1+2+3 39 %'."""
    return ", ".join(f"{names[k]} {100 * mix[k]:.0f} %" for k in support(mix))


def _exposed(strategy: Exposed) -> dict[str, Any]:
    estimates = {name: getattr(strategy, name)._asdict() for name in _ESTIMATES}
    return {
        "name": strategy.name,
        "mix": strategy.mix,
        "restricted": strategy.restricted,
        **estimates,
    }


def _read_exposed(record: dict[str, Any]) -> Exposed:
    estimates = {name: Estimate(**record[name]) for name in _ESTIMATES}
    return Exposed(
        name=record["name"], mix=tuple(record["mix"]), restricted=record["restricted"], **estimates
    )


def _read_rows(rows: Sequence[dict[str, Any]]) -> tuple[Played, ...]:
    return tuple(
        Played(**{**row, "target": tuple(row["target"]) if row["target"] else None}) for row in rows
    )
