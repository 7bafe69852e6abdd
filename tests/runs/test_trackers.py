"""Trackers receive every cell and the result of an audit."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch
from tests.audits.probes.toy_targets import X, Y, net

import saddlepoint as sp
from saddlepoint.runs import TensorBoard, WandB
from saddlepoint.runs.interactive import NotebookProgress, progress_watch
from saddlepoint.runs.progress import ProgressBar

ATTACKS = [sp.Direct("pgd", sp.PGD(steps=3)), sp.Direct("fgsm", sp.PGD(steps=1))]


def audited(**arguments):
    return sp.audit(
        net(), X, Y, threat=0.1, adversaries=ATTACKS, budget="quick", batch_size=6, **arguments
    )


class Run:
    """A run of Weights & Biases, as far as it is used: `log` and `summary`."""

    def __init__(self):
        self.logged = []
        self.summary = {}

    def log(self, values):
        self.logged.append(values)


def test_a_run_of_wandb_gets_cells_and_the_result_also_beside_other_watches():
    run = Run()
    lines = []

    def show(text):
        lines.append(text)
        return lines.append

    result = audited(watch=[WandB(run), NotebookProgress(show)])
    # Clean images and two attacks on two batches.
    assert [values["cells"] for values in run.logged] == [1, 2, 3, 4, 5, 6]
    worst = [values["worst case so far"] for values in run.logged]
    assert worst[-1] == pytest.approx(result.robust_accuracy)
    assert {name for values in run.logged for name in values} >= {"attack/pgd", "attack/fgsm"}
    assert run.summary["robust accuracy"] == result.robust_accuracy
    assert result.verdict in run.summary["verdict"]
    assert any("6 of 6 cells" in line for line in lines)
    assert lines[-1] == ""


def test_tensorboard_reads_what_was_written(tmp_path):
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="tensorboard is not installed",
    )
    result = audited(watch=TensorBoard(tmp_path))
    events = accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    tags = events.Tags()
    assert {"attack/pgd", "attack/fgsm", "worst_case_so_far"} <= set(tags["scalars"])
    worst = [event.value for event in events.Scalars("worst_case_so_far")]
    assert len(worst) == 6
    assert worst[-1] == pytest.approx(result.robust_accuracy)
    assert events.Scalars("robust_accuracy")[0].value == pytest.approx(result.robust_accuracy)
    text = events.Tensors("verdict/text_summary")[0].tensor_proto.string_val[0].decode()
    assert result.summary() in text


def test_without_tensorboard_the_error_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"saddlepoint\[tensorboard\]"):
        TensorBoard(tmp_path)


def kinds(wanted):
    with progress_watch(wanted) as watches:
        return [type(watch) for watch in watches]


def test_progress_is_shown_on_terminals_and_in_notebooks_only_unless_requested(monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    monkeypatch.setitem(sys.modules, "IPython", None)
    assert kinds(None) == []
    assert kinds(True) == [ProgressBar]
    assert kinds(False) == []
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert kinds(None) == [ProgressBar]
    notebook = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=True))
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    assert kinds(None) == [NotebookProgress]
    assert kinds(False) == []
    shell = SimpleNamespace(get_ipython=lambda: SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython", shell)
    assert kinds(None) == [ProgressBar]


def test_requested_progress_is_printed_to_standard_error(capsys):
    audited(progress=True)
    shown = capsys.readouterr()
    assert "pgd" in shown.err
    assert shown.out == ""


def test_the_mean_of_coupled_batches_compares_whole_batches():
    tracker = WandB(Run())
    tracker._names = ("clean", "a")
    tracker._coupled = True
    cells = (torch.tensor([[1.0, 1, 0]]), torch.tensor([[0.0, 1, 1]]))
    for number, correct in enumerate(cells):
        tracker.cell((0, number), SimpleNamespace(correct=correct))
    assert tracker._run.logged[-1]["worst case so far"] == pytest.approx(2 / 3)
