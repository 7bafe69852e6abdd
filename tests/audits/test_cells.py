"""Attack cells: groups of rows, and adversaries that select their own rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import saddlepoint as sp
from saddlepoint.audits.cells import Job
from saddlepoint.defenses import Defense, Trace, View
from saddlepoint.evaluation import Episode, OnExamples, SortedByLabel, Threat, play

N = 24
RADIUS = 0.03
GENERATOR = torch.Generator().manual_seed(0)
W = torch.randn(16, generator=GENERATOR)
X = 0.5 + 0.12 * torch.randn(N, 1, 4, 4, generator=GENERATOR).clamp(-3, 3)
Y = ((X - 0.5).flatten(1) @ W > 0).long()


class Linear(nn.Module):
    def forward(self, x):
        z = (x - 0.5).flatten(1) @ W
        return torch.stack([-z, z], 1)


class BatchMean(Defense):
    """Coupled rows: every output is the mean of the batch."""

    coupled = True

    def trace(self, x, ctx):
        z = Linear()(x)
        return Trace((View("final", z.mean(0, keepdim=True).expand_as(z)),))


def job_for(defense):
    return Job(defense, X, Y, Threat(sp.Linf(RADIUS)), seed=0, batch_size=8)


@pytest.mark.parametrize(
    ("defense", "attacked"),
    [(sp.Plain(Linear()), [3, 4, 20]), (BatchMean(), [*range(8), *range(16, 24)])],
    ids=["rows", "batches"],
)
def test_an_adversary_on_some_examples_leaves_the_others_alone(defense, attacked):
    """Whole batches are attacked if rows are coupled."""
    job = job_for(defense)
    pgd = sp.Direct("pgd", sp.PGD(4, RADIUS / 8, random_start=False))
    some = OnExamples("some", pgd, (3, 4, 20))
    whole = torch.cat([job.play(pgd, rows).points for rows in job.groups])
    episodes = [job.play(some, rows) for rows in job.groups]
    points = torch.cat([episode.points for episode in episodes])
    forward = torch.cat([episode.forward for episode in episodes])
    others = torch.tensor([k for k in range(N) if k not in attacked])
    assert torch.equal(points[attacked], whole[attacked])
    assert torch.equal(points[others], X[others])
    assert forward[others].sum() == 0 < forward[attacked].amin()


class Stream(BatchMean):
    memory = "stream"


@pytest.mark.parametrize(
    ("defense", "sizes"),
    [(sp.Plain(Linear()), [8, 8, 8]), (Stream(), [24])],
    ids=["rows", "stream"],
)
def test_a_stream_is_one_cell_because_its_batches_depend_on_earlier_ones(defense, sizes):
    assert [len(rows) for rows in job_for(defense).groups] == sizes


@pytest.mark.parametrize(
    ("images", "batch_size", "sizes"),
    [
        (100, 128, [100]),
        (300, 128, [256, 44]),
        (1000, 128, [256, 256, 256, 232]),
        (3000, 128, [256] * 11 + [184]),
        (300, 32, [32] * 9 + [12]),
        (800, 400, [400, 400]),
    ],
)
def test_a_cell_of_an_ordinary_network_has_several_batches_of_small_images(
    images, batch_size, sizes
):
    """At most 4 MiB of pixels, in two cells at least; a small batch size is kept."""
    x = torch.zeros(images, 3, 32, 32)
    job = Job(sp.Plain(Linear()), x, x[:, 0, 0, 0], Threat(sp.Linf(RADIUS)), 0, batch_size)
    assert [len(rows) for rows in job.groups] == sizes
    coupled = replace(job, defense=BatchMean())
    assert {len(rows) for rows in coupled.groups[:-1]} <= {batch_size}


class Shifted(Defense):
    """Adapts to the mean of a batch and answers with what it has adapted to."""

    memory = "batch"

    def __init__(self, shift=0.0, batches=0):
        self.shift = shift
        self.batches = batches

    def adapt(self, x, ctx):
        return type(self)(0.5 * self.shift + (x - X.mean()).mean(), self.batches + 1)

    def trace(self, x, ctx):
        return Trace((View("final", Linear()(x + self.shift) + 0.1 * self.batches),))


class ShiftedStream(Shifted):
    memory = "stream"


@pytest.mark.parametrize("defense", [BatchMean(), Shifted(), ShiftedStream(), sp.Plain(Linear())])
@pytest.mark.parametrize("images", [24, 20])
@pytest.mark.parametrize(
    "settings",
    [{}, {"rounds": "one"}, {"order": SortedByLabel(16)}],
    ids=["batches", "one round", "sorted"],
)
def test_the_cells_of_an_audit_play_the_game_of_the_threat_model(defense, settings, images):
    threat = Threat(sp.Linf(RADIUS), **settings)
    pgd = sp.Direct("pgd", sp.PGD(3, RADIUS / 4), stop_at_success=False)
    x = X[:images]
    y = Y[:images]
    job = Job(defense, x, y, threat, seed=0, batch_size=8)
    cells = Episode.joined([job.play(pgd, rows) for rows in job.groups])
    whole = play(defense, pgd, x, y, threat, seed=0, batch_size=8)
    assert torch.equal(cells.points, whole.points) or defense.unit == "example"
    assert torch.equal(cells.correct, whole.correct)
    assert torch.allclose(cells.margin, whole.margin)
    if defense.unit != "example":
        assert torch.equal(cells.batch, whole.batch)


class LimitedMemory(Defense):
    """Has memory for two rows."""

    def __init__(self):
        self.sizes = []

    def trace(self, x, ctx):
        self.sizes.append(len(x))
        if len(x) > 2:
            raise torch.OutOfMemoryError("out of memory")
        return Trace((View("final", Linear()(x)),))


def test_independent_rows_are_attacked_in_smaller_batches_when_memory_runs_out():
    defense = LimitedMemory()
    pgd = sp.Direct("pgd", sp.PGD(2))
    episode = job_for(defense).play(pgd, torch.arange(8))
    expected = job_for(sp.Plain(Linear())).play(pgd, torch.arange(8))
    assert torch.equal(episode.points, expected.points)
    assert int(episode.batch.amax()) + 1 == 4


def test_coupled_rows_cannot_be_split_when_memory_runs_out():
    defense = LimitedMemory()
    defense.coupled = True
    with pytest.raises(MemoryError, match="smaller batch size"):
        job_for(defense).play(sp.Direct("pgd", sp.PGD(2)), torch.arange(8))
