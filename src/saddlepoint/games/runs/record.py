"""The record of a game and its files `game.json` and `game.safetensors`.

Checksums detect changes of either file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from saddlepoint.audits.records import SYMPTOM_NAMES
from saddlepoint.audits.verdict import Level, Symptom, SymptomName
from saddlepoint.defenses import Subset, subset_name
from saddlepoint.evaluation.bootstrap import Estimate
from saddlepoint.evaluation.outcomes import accuracy_of
from saddlepoint.games.matrix import solve
from saddlepoint.phrases import percent_cell
from saddlepoint.runs.packed_cell import sealed
from saddlepoint.runs.spec_migration import migrate_spec
from saddlepoint.runs.store import Store
from saddlepoint.schema import Migrations, SchemaError, migrated
from saddlepoint.tensor_files import file_sha256

SCHEMA = 2
JSON = "game.json"
TENSORS = "game.safetensors"
_DAMAGE = (
    ValueError,  # also of JSON, Unicode and enumerations
    TypeError,
    KeyError,
    AttributeError,
    IndexError,
    OSError,
    SafetensorError,
)
_POSITIVE = 1e-9  # a smaller probability is a rounding error


class GameError(ValueError):
    """The record of a game is missing, damaged or changed."""


def _to_2(record: dict[str, Any]) -> dict[str, Any]:
    """Schema 1 had other names of symptoms and of the keys of the specification."""
    symptoms = []
    for symptom in record["symptoms"]:
        name = SYMPTOM_NAMES.get(symptom["name"], symptom["name"])
        symptoms.append({**symptom, "name": name})
    specs = {name: migrate_spec(record[name]) for name in ("spec", "passed")}
    return {**record, **specs, "symptoms": symptoms}


MIGRATIONS: Migrations = {1: _to_2}


@dataclass(frozen=True)
class AdversaryRecord:
    """One adversary and its cost."""

    name: str
    target: Subset | None  # the attacked exits; None: an expected loss, or the clean images
    forward: float  # forward passes per image
    backward: float  # backward passes per image
    seconds: float
    copies: int  # images for which it proposed the clean image


@dataclass(frozen=True)
class StrategyRecord:
    """A mixed strategy under several attackers, on images that did not build the game."""

    name: str
    mix: tuple[float, ...]  # [D] probabilities of the columns
    clean: Estimate
    restricted: float  # the lowest accuracy in the game, on its own images
    aimer: Estimate  # under the game's best response
    expected_loss: Estimate  # under the attack on the expected loss of the strategy
    per_image: Estimate  # under the strongest of all attacks, chosen per image


@dataclass(frozen=True)
class SolvedStrategy:
    """An optimal mixed strategy of the defender on the images of the game."""

    mix: tuple[float, ...]  # [D] probabilities of the columns
    value: float  # the accuracy that it guarantees
    gap: float  # the certificate: it is optimal up to this accuracy


@dataclass(frozen=True)
class GameRecord:
    """The outcome of an exit game: the matrix, its equilibrium, and strategies on other images."""

    target: str
    threat: str
    data: str
    n: int  # images
    built_on: int  # the first images, which build the game
    exits: int
    subsets: tuple[Subset, ...]  # [D] columns
    targets: tuple[Subset | None, ...]  # [A] exits that each row attacks; None: an expected loss
    value: Estimate  # value of the game against all rows, with its bootstrap interval
    equilibrium: SolvedStrategy  # NEED
    attacker: tuple[float, ...]  # [A] the attacker's equilibrium strategy
    response: tuple[float, ...]  # [A] AIMER's best response to NEED
    mismatch: float | None  # R_mis at equilibrium; None: a played row attacks an expected loss
    matched: int  # columns with a row that attacks the same exits
    beaten: int  # of these, columns in which another row is stronger
    exploitability: float | None  # of the double oracle; None: all rows were played
    pure: Subset  # the best subset without randomization
    pure_value: float
    per_example: SolvedStrategy  # against an attacker that chooses a row per image
    # NEED, the best pure answer, the strategy of `per_example`, the last exit
    strategies: tuple[StrategyRecord, ...]
    # NEED minus the best pure answer on the images that did not build the game, by attacker
    gains: Mapping[str, Estimate]
    rows: tuple[AdversaryRecord, ...]  # [A]
    scored_rows: tuple[AdversaryRecord, ...]  # [R] on the other images; the clean images first
    symptoms: tuple[Symptom, ...]
    seed: int
    spec: Mapping[str, Any]  # with all defaults
    passed: Mapping[str, Any]  # as passed by the user
    hashes: Mapping[str, str]  # SHA-256 of target and images
    versions: Mapping[str, str]
    command: str
    seconds: float
    correct: Tensor  # [A, D, N] bool
    scored: Tensor  # [R, D, M] bool
    run: str = ""  # identity of the request

    @property
    def payoff(self) -> Tensor:
        """The accuracy of each column under each row, [A, D]."""
        return accuracy_of(self.correct)

    @property
    def partial_value(self) -> float:
        """The value against partial attacks alone, without attacks on an expected loss."""
        partial = [a for a, target in enumerate(self.targets) if target is not None]
        return solve(self.payoff[partial]).value

    @property
    def partial_attacks(self) -> int:
        """The number of rows that attack a subset of exits; the others attack an expected loss."""
        return sum(target is not None for target in self.targets)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(map(subset_name, self.subsets))

    @property
    def scored_on(self) -> int:
        """The number of images on which strategies are evaluated."""
        return self.n - self.built_on

    def strategy(self, name: str) -> StrategyRecord:
        """The first strategy with a name that begins with `name`."""
        return next(strategy for strategy in self.strategies if strategy.name.startswith(name))

    def exit_accuracy(self, row: int) -> tuple[float, ...]:
        """The accuracy of each single exit, [L], under one of `scored_rows`."""
        accuracy = self.scored[row].double().mean(-1)
        columns = [self.subsets.index((number,)) for number in range(1, self.exits + 1)]
        return tuple(float(accuracy[column]) for column in columns)

    @property
    def all_exits_row(self) -> int:
        """The index in `scored_rows` of the attack on all exits."""
        everything = tuple(range(1, self.exits + 1))
        return next(k for k, row in enumerate(self.scored_rows) if row.target == everything)

    def summary(self) -> str:
        """The value of the game and the robust accuracy of NEED, as one sentence."""
        need = self.strategy("NEED")
        pure = self.strategy("best pure")
        return (
            f"the restricted game has the value {self.value}; on other images the accuracy of NEED "
            f"is {need.aimer} under AIMER and at most {need.per_image} under an attacker that "
            f"chooses per image; for the best pure answer, {subset_name(self.pure)}, it is "
            f"{pure.aimer} and {pure.per_image}."
        )

    def record(self) -> dict[str, Any]:
        """Everything except the outcomes of single images, as JSON values."""
        values = {
            "schema": SCHEMA,
            "kind": "game",
            **{name: getattr(self, name) for name in (*_PLAIN, *_LISTS)},
            "value": self.value._asdict(),
            **{name: asdict(getattr(self, name)) for name in _SOLUTIONS},
            "strategies": [_strategy_values(strategy) for strategy in self.strategies],
            "gains": {name: gain._asdict() for name, gain in self.gains.items()},
            **{
                name: [asdict(row) for row in getattr(self, name)]
                for name in ("rows", "scored_rows", "symptoms")
            },
            **{name: dict(getattr(self, name)) for name in _MAPPINGS},
            "payoff": self.payoff.tolist(),
        }
        plain: dict[str, Any] = json.loads(json.dumps(values, allow_nan=False))
        return plain

    def save(self, folder: Path) -> Path:
        """Write both files to a folder and return it.

        The tensors are written first, so that a record without its tensors cannot exist.
        """
        store = Store(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {"payoff": self.payoff, "correct": self.correct, "scored": self.scored}
        digest = store.write_tensors(TENSORS, tensors)
        store.write_file(JSON, sealed({**self.record(), "tensors": digest}))
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> GameRecord:
        """Read what `save` wrote.

        Raises:
            FileNotFoundError: the folder has no record.
            GameError: a file is missing, damaged or was changed.
        """
        place = Path(folder)
        record = read(place / JSON)
        try:
            if file_sha256(place / TENSORS) != record["tensors"]:
                raise GameError(
                    f"{place / TENSORS} is damaged: its hash differs from the one in {JSON}. "
                    "Play the game again."
                )
            return cls._of(record, load_file(place / TENSORS))
        except GameError:
            raise
        except _DAMAGE as error:
            raise GameError(
                f"{place} contains no complete game ({type(error).__name__}: {error}). "
                "Play the game again."
            ) from error

    @classmethod
    def _of(cls, record: dict[str, Any], tensors: Mapping[str, Tensor]) -> GameRecord:
        payoff = torch.tensor(record["payoff"], dtype=torch.float64)
        if not torch.equal(payoff, accuracy_of(tensors["correct"])):
            raise GameError(
                "the payoff of the record is not the mean of its outcomes. Play the game again."
            )
        fields: dict[str, Any] = {name: record[name] for name in (*_PLAIN, *_MAPPINGS)}
        fields |= {name: tuple(record[name]) for name in ("attacker", "response", "pure")}
        fields |= {
            name: SolvedStrategy(**{**record[name], "mix": tuple(record[name]["mix"])})
            for name in _SOLUTIONS
        }
        fields |= {name: _read_rows(record[name]) for name in ("rows", "scored_rows")}
        return cls(
            **fields,
            subsets=tuple(tuple(subset) for subset in record["subsets"]),
            targets=tuple(tuple(target) if target else None for target in record["targets"]),
            value=Estimate(**record["value"]),
            strategies=tuple(_read_strategy(values) for values in record["strategies"]),
            gains={name: Estimate(**gain) for name, gain in record["gains"].items()},
            symptoms=tuple(_read_symptom(symptom) for symptom in record["symptoms"]),
            correct=tensors["correct"],
            scored=tensors["scored"],
        )


_PLAIN = (
    "target",
    "threat",
    "data",
    "n",
    "built_on",
    "exits",
    "mismatch",
    "matched",
    "beaten",
    "exploitability",
    "pure_value",
    "seed",
    "command",
    "seconds",
    "run",
)
_LISTS = ("subsets", "targets", "attacker", "response", "pure")
_SOLUTIONS = ("equilibrium", "per_example")
_MAPPINGS = ("spec", "passed", "hashes", "versions")
_ESTIMATES = ("clean", "aimer", "expected_loss", "per_image")


def read(path: Path) -> dict[str, Any]:
    """Read `game.json` in the current schema.

    Raises:
        FileNotFoundError: there is no such file.
        GameError: the file is damaged or was changed.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"no {path.name} in {path.parent}. Give the folder that `saddlepoint game --out` wrote."
        )
    try:
        text = path.read_bytes()
        record: dict[str, Any] = json.loads(text)
        if sealed({name: value for name, value in record.items() if name != "seal"}) != text:
            raise GameError(
                f"{path} is damaged or was changed: its checksum is wrong. Play the game again."
            )
        return migrated(record, MIGRATIONS, SCHEMA, str(path.parent))
    except GameError:
        raise
    except SchemaError as error:
        raise GameError(str(error)) from None
    except _DAMAGE as error:
        raise GameError(
            f"{path} is damaged ({type(error).__name__}: {error}). Play the game again."
        ) from error


def support(mix: Sequence[float]) -> tuple[int, ...]:
    """The actions with positive probability, the most probable first."""
    return tuple(sorted((k for k, p in enumerate(mix) if p > _POSITIVE), key=lambda k: -mix[k]))


def same_strategy(first: StrategyRecord, second: StrategyRecord) -> bool:
    """Whether two strategies have the same probabilities, so that their difference is exactly 0."""
    pairs = zip(first.mix, second.mix, strict=True)
    return all(abs(a - b) <= _POSITIVE for a, b in pairs)


def best_pure(record: GameRecord) -> tuple[int, ...]:
    """All columns, sorted by their accuracy under their worst row, the highest first."""
    lowest = record.payoff.amin(0)
    return tuple(int(d) for d in lowest.argsort(descending=True, stable=True))


def format_mix(mix: Sequence[float], names: Sequence[str]) -> str:
    """A mixed strategy as text: '2+4 61 %, 1+2+3 39 %'."""
    return ", ".join(f"{names[k]} {percent_cell(mix[k], 0)}" for k in support(mix))


def _strategy_values(strategy: StrategyRecord) -> dict[str, Any]:
    estimates = {name: getattr(strategy, name)._asdict() for name in _ESTIMATES}
    return {
        "name": strategy.name,
        "mix": strategy.mix,
        "restricted": strategy.restricted,
        **estimates,
    }


def _read_strategy(values: dict[str, Any]) -> StrategyRecord:
    estimates = {name: Estimate(**values[name]) for name in _ESTIMATES}
    return StrategyRecord(
        name=values["name"], mix=tuple(values["mix"]), restricted=values["restricted"], **estimates
    )


def _read_rows(rows: Sequence[dict[str, Any]]) -> tuple[AdversaryRecord, ...]:
    return tuple(
        AdversaryRecord(**{**row, "target": tuple(row["target"]) if row["target"] else None})
        for row in rows
    )


def _read_symptom(record: Mapping[str, Any]) -> Symptom:
    return Symptom(SymptomName(record["name"]), Level(record["level"]), record["message"])
