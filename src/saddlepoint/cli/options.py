"""What was asked for on the command line, as a specification and a place to write."""

from __future__ import annotations

import re
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from saddlepoint.audits import Audit
    from saddlepoint.runs.cache import Watch
    from saddlepoint.runs.executors import Executor
    from saddlepoint.runs.spec import RunSpec


class Norm(StrEnum):
    """How the size of a perturbation is measured."""

    linf = "linf"
    l2 = "l2"
    l1 = "l1"


class Access(StrEnum):
    """What the attacker is shown."""

    decision = "decision"
    score = "score"
    gradient = "gradient"


class Randomness(StrEnum):
    """Who knows the coins of a random defense."""

    private = "private"
    public = "public"
    fixed = "fixed"


class Rounds(StrEnum):
    """How often the defender adapts."""

    many = "many"
    one = "one"


class Order(StrEnum):
    """In which order examples reach the defender."""

    natural = "natural"
    by_label = "by-label"
    searched = "searched"


class Victims(StrEnum):
    """Whose wrong answers count."""

    all = "all"
    benign = "benign"


class Budget(StrEnum):
    """How much the attacks may cost."""

    quick = "quick"
    standard = "standard"
    thorough = "thorough"


class Attack(StrEnum):
    """How the exits of a network are attacked in a game."""

    fgsm = "fgsm"
    pgd_20 = "pgd-20"
    pgd_100 = "pgd-100"
    eot_pgd_20 = "eot-pgd-20"
    vmi_fgsm = "vmi-fgsm"
    autoattack = "autoattack"


class Subsets(StrEnum):
    """Which sets of exits may be attacked or answer."""

    all = "all"
    intervals = "intervals"


class Rows(StrEnum):
    """Which sets of exits are attacked."""

    all = "all"
    double_oracle = "double-oracle"


class Means(StrEnum):
    """Who computes."""

    serial = "serial"
    processes = "processes"
    ray = "ray"


USUAL_RADIUS = {
    Norm.linf: "8/255",
    Norm.l2: "0.5",
    Norm.l1: "12",
}  # of the literature on 32 x 32 color images
USUAL_COUNT = 500


def images(name: str, n: int | None, root: Path | None) -> dict[str, object]:
    """The data section. Without a number: the first 500 of a named source, all of the user's own."""
    from saddlepoint.data import SOURCES

    count = n if n is not None or name not in SOURCES else USUAL_COUNT
    return {"name": name, "n": count, "root": str(root) if root else None}


def by_name(names: str | None) -> list[dict[str, object]]:
    """The attack sections that a list of names stands for."""
    from saddlepoint.runs.attack_specs import named

    words = [word.strip() for word in names.split(",")] if names is not None else []
    return [named(word).model_dump() for word in words]


def default_folder(target: str, norm: str, eps: str) -> Path:
    """`runs/net-make-linf-8-255`: the end of a path, without what file systems or shells read."""
    place, _, name = target.removeprefix("zoo:").rpartition(":")
    words = (Path(place).name.removesuffix(".py"), name.rpartition("/")[2], norm, eps)
    return Path("runs") / "-".join(
        re.sub(r"[^A-Za-z0-9.]+", "-", word).strip("-.") for word in words if word
    )


def executor(means: Means | None, workers: int | None, address: str | None) -> Executor:
    """The executor that was asked for; to name workers or an address is to ask for one that has them."""
    from saddlepoint.runs.executors import Processes, Serial

    means = means or (Means.ray if address else Means.processes if workers else Means.serial)
    if workers and means is not Means.processes:
        raise ValueError(f"--workers is for --executor processes, not {means}.")
    if address and means is not Means.ray:
        raise ValueError(f"--address is for --executor ray, not {means}.")
    if means is Means.ray:
        from saddlepoint.runs.ray import Ray

        return Ray(address)
    return Processes(workers) if means is Means.processes else Serial()


def run(spec: RunSpec, out: Path, *, by: Executor, watch: Watch) -> Audit:
    """Run the specification. What the user can have got wrong is found before the attacks begin."""
    from saddlepoint.runs import run_spec

    refuse_missing_device(spec.device)
    refuse_unwritable(out)
    return run_spec(spec, out, executor=by, watch=watch)


def is_game(run: Path) -> bool:
    """Was the folder last used for a game? One without a readable run.json was not."""
    from saddlepoint.runs.store import Store, StoreError

    try:
        return Store(run).run().get("kind") == "game"
    except StoreError:
        return False


def refuse_missing_device(name: str) -> None:
    import torch

    try:
        torch.zeros(1, device=torch.device(name))
    except (RuntimeError, AssertionError) as error:
        first = str(error).splitlines()[0]
        raise ValueError(
            f"the device {name!r} cannot be used ({first}). Try --device cpu."
        ) from error


def refuse_unwritable(folder: Path) -> None:
    """Nobody wants to hear after an hour that the result has no place."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(
            f"cannot write to {folder} ({error}). Choose another folder with --out."
        ) from error
