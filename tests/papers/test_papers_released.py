"""Options and notes of the command that measures defenses on their authors' weights."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest
import torch
from benchmarks import released_defenses
from safetensors.torch import save_file

import saddlepoint as sp
from saddlepoint import zoo
from saddlepoint.attacks.spaces import Linf
from saddlepoint.data.record import Data
from saddlepoint.papers.result import read


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Namespace:
    """Options for four digits after the first three, with an audit of two of them."""

    def load(name: str, *, split: str, n: int, root: Path) -> Data:
        assert (name, split, root) == ("cifar10", "test", tmp_path)
        return sp.load_data("digits", n=n)

    monkeypatch.setattr(released_defenses, "load_data", load)
    (tmp_path / "modules.py").write_text("")
    save_file({"weight": torch.zeros(1)}, tmp_path / "net.safetensors")
    words = ["soap", "--models", str(tmp_path), "--data", str(tmp_path), "--out", str(tmp_path)]
    chosen = ["--skip", "3", "--images", "4", "--audited", "2"]
    return released_defenses._parser().parse_args([*words, *chosen])


def test_skipped_images_are_left_out_and_the_record_says_so(arguments: Namespace) -> None:
    found = released_defenses.test_images(arguments)
    every = sp.load_data("digits", n=7)
    assert torch.equal(found.x, every.x[3:])
    assert torch.equal(found.y, every.y[3:])
    bench = _bench(arguments)
    assert "--skip 3 --images 4" in bench.command
    assert any(note.startswith("test images 4 to 7;") for note in bench.notes)


def test_a_record_has_verdict_reasons_symptoms_and_attacks_of_the_audit(
    arguments: Namespace,
) -> None:
    bench = _bench(arguments)
    bench.audit("digits", sp.Plain(zoo.load("digits-pgd")), 50.0)
    result = read(bench.path.read_text(encoding="utf-8"), "record")
    (row,) = result.tables[0].rows
    assert row.labels[0] == "audit, standard"
    assert row.labels[1].endswith(" of 2")
    notes = " ".join(result.notes)
    for words in ("verdict", "reason for the verdict: ", "symptoms that", "apgd-ce", "2 images"):
        assert words in notes


def _bench(arguments: Namespace) -> released_defenses.Bench:
    return released_defenses.Bench(
        arguments, released_defenses.SOAP_EXPERIMENT, "net", 4, Linf(0.1), ()
    )
