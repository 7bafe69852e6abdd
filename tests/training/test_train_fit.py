"""`fit` is a function of weights, data, recipe and seed; resumed runs give the same bits."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf
from saddlepoint.evaluation import Direct, FixedPoints
from saddlepoint.rng import Keys
from saddlepoint.training import (
    SGD,
    TRADES,
    Adam,
    Cosine,
    FastTraining,
    PGDTraining,
    Piecewise,
    Recipe,
    Shift,
    Standard,
    fit,
    split,
)

N = 60


class Small(nn.Module):
    """A network with batch norm and dropout: their hidden state must survive a resume."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(16, 3),
        )

    def forward(self, x):
        return self.layers(x)


@pytest.fixture
def net():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return Small()


@pytest.fixture
def data():
    keys = Keys.of(11, torch.arange(N))
    y = keys.integers(3)
    x = 0.6 * keys.fold_in(1).uniform((1, 4, 4))
    x[torch.arange(N), 0, y, :] += 0.35  # a bright row encodes the class
    return x.clamp(0, 1), y


RECIPE = Recipe(
    name="small",
    data="none",
    net=Small,
    method=TRADES(attack=PGD(steps=2)),
    space=Linf(0.1),
    epochs=5,
    batch_size=16,
    optimizer=SGD(rate=0.2),
    select=Direct("pgd-2", PGD(steps=2)),
    dev_share=0.25,
)
METHODS = [
    RECIPE,
    replace(RECIPE, method=Standard(), select=FixedPoints(), optimizer=Adam(rate=0.01)),
    replace(RECIPE, method=FastTraining(), schedule=Piecewise(), augment=Shift(1, mirror=True)),
]


def identical(a, b):
    return a.history == b.history and all(
        torch.equal(u, v)
        for u, v in zip(a.net.state_dict().values(), b.net.state_dict().values(), strict=True)
    )


class Killed(Exception):  # noqa: N818
    pass


def killed_after(epochs):
    def progress(epoch):
        if epoch.number == epochs:
            raise Killed

    return progress


@pytest.mark.parametrize(
    "recipe", METHODS, ids=["trades-sgd", "standard-adam", "fast-piecewise-shift"]
)
@pytest.mark.parametrize("epochs", [1, 4])
def test_a_killed_and_resumed_run_gives_the_bits_of_an_uninterrupted_one(
    net, data, recipe, epochs, tmp_path
):
    whole = fit(net, *data, recipe, seed=3)
    with pytest.raises(Killed):
        fit(net, *data, recipe, seed=3, out=tmp_path, progress=killed_after(epochs))
    torch.manual_seed(99)  # the state of the global generator must not matter
    resumed = fit(net, *data, recipe, seed=3, out=tmp_path)
    assert identical(resumed, whole)


def test_a_finished_run_is_loaded_and_not_trained_again(net, data, tmp_path):
    whole = fit(net, *data, RECIPE, out=tmp_path)
    epochs = []
    assert identical(fit(net, *data, RECIPE, out=tmp_path, progress=epochs.append), whole)
    assert epochs == []
    again = fit(net, *data, RECIPE, out=tmp_path, resume=False, progress=epochs.append)
    assert identical(again, whole)
    assert len(epochs) == RECIPE.epochs


def test_the_seed_decides_the_result_and_inputs_are_not_changed(net, data):
    x, y = data
    generator = torch.get_rng_state()
    before = [p.clone() for p in net.parameters()]
    first, again, other = (fit(net, x, y, RECIPE, seed=s) for s in (3, 3, 4))
    assert identical(first, again)
    assert not identical(first, other)
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(
        torch.equal(p, q) and p.grad is None for p, q in zip(net.parameters(), before, strict=True)
    )


def test_the_dev_set_and_the_training_rows_are_disjoint():
    train, dev = split(1297, 0.2, seed=0)
    assert len(dev) == 259
    # Disjoint, and together all rows.
    assert torch.equal(torch.cat([train, dev]).sort().values, torch.arange(1297))
    assert not torch.equal(split(1297, 0.2, seed=1).dev, dev)


def test_labels_of_the_dev_set_do_not_change_the_weights(net, data):
    x, y = data
    dev = split(N, RECIPE.dev_share, seed=0).dev
    one_epoch = replace(RECIPE, epochs=1)  # with one epoch the dev set chooses nothing either
    wrong = y.scatter(0, dev, (y[dev] + 1) % 3)
    a = fit(net, x, y, one_epoch)
    b = fit(net, x, wrong, one_epoch)
    assert a.best.loss == b.best.loss
    assert_close(dict(a.net.state_dict()), dict(b.net.state_dict()), rtol=0, atol=0)


def test_every_training_example_is_used_once_per_epoch(net, data):
    batches = []

    class Recording:
        def loss(self, net, x, y, space, keys):
            batches.append(x)
            return nn.functional.cross_entropy(net(x), y, reduction="none")

    trained = fit(net, *data, replace(RECIPE, method=Recording(), epochs=2))
    size = len(trained.split.train)
    first = torch.cat(batches)[:size]
    second = torch.cat(batches)[size:]
    key = lambda batch: sorted(tuple(row.flatten().tolist()) for row in batch)  # noqa: E731
    assert key(first) == key(second) == key(data[0][trained.split.train])
    assert not torch.equal(first, second)  # each epoch has its own order


def test_the_kept_epoch_is_the_first_of_the_best_epochs_on_the_dev_set(net, data):
    trained = fit(net, *data, replace(RECIPE, epochs=8))
    best = max((e.selected, e.clean) for e in trained.history)
    assert trained.best == next(e for e in trained.history if (e.selected, e.clean) == best)
    x, y = (part[trained.split.dev] for part in data)
    assert not trained.net.training
    assert (trained.net(x).argmax(1) == y).double().mean().item() == pytest.approx(
        trained.best.clean
    )


def test_training_stops_after_patience_epochs_without_improvement(net, data):
    no_learning = replace(RECIPE, optimizer=SGD(rate=0.0), method=Standard(), patience=2, epochs=30)
    linear = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    trained = fit(linear, *data, no_learning)
    assert trained.best.number == 1
    assert len(trained.history) == 3


def test_pgd_training_with_radius_zero_is_standard_training(net, data):
    one_point = replace(RECIPE, space=Linf(0.0), select=FixedPoints(), epochs=2)
    standard, pgd = (
        fit(net, *data, replace(one_point, method=m)) for m in (Standard(), PGDTraining())
    )
    assert identical(standard, pgd)


def test_the_learning_rate_follows_the_schedule_over_all_steps_and_across_a_resume(
    net, data, tmp_path
):
    shares = []

    class Recording:
        def factor(self, done):
            shares.append(done)
            return 1.0

    watched = replace(RECIPE, schedule=Recording(), method=Standard(), epochs=3)
    with pytest.raises(Killed):
        fit(net, *data, watched, out=tmp_path, progress=killed_after(1))
    fit(net, *data, watched, out=tmp_path)
    batches = 3  # 45 examples, at most 16 at a time
    assert shares == pytest.approx([k / (3 * batches) for k in range(3 * batches)])


def test_values_of_the_schedules():
    assert [Cosine().factor(t) for t in (0, 0.5)] == pytest.approx([1, 0.5])
    assert [Cosine(warmup=0.2).factor(t) for t in (0, 0.1, 0.2, 0.6)] == pytest.approx(
        [0, 0.5, 1, 0.5]
    )
    assert [Piecewise((0.5, 0.75)).factor(t) for t in (0, 0.49, 0.5, 0.75)] == pytest.approx(
        [1, 1, 0.1, 0.01]
    )


def test_shift_moves_the_whole_image_and_pads_with_zeros():
    x = torch.zeros(50, 1, 5, 5)
    x[:, :, 2, 2] = 1
    moved = Shift(1)(x, Keys.of(0, torch.arange(50)))
    assert moved.shape == x.shape
    assert_close(moved[:, :, 1:4, 1:4].sum((1, 2, 3)), torch.ones(50))
    assert len({int(row.flatten().argmax()) for row in moved}) == 9
    assert torch.equal(Shift(0)(x, Keys.of(0, torch.arange(50))), x)


def test_mirror_flips_about_half_of_the_images():
    x = torch.arange(5.0).expand(200, 1, 5, 5)
    flipped = (Shift(0, mirror=True)(x, Keys.of(0, torch.arange(200)))[:, 0, 0, 0] == 4).sum()
    assert 60 < flipped < 140  # 200 fair draws leave this range with probability below 1e-7


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (x * 255, y), r"box \[0, 1\]"),
        (lambda x, y: (x, y[:-1]), "int64 labels y"),
        (lambda x, y: (x, y.float()), "int64 labels y"),
        (lambda x, y: (x, y + 1), "C above every label"),
        (lambda x, y: (x[:1], y[:1]), "at least two examples"),
        (lambda x, y: (x.where(x > 0.1, torch.nan), y), r"box \[0, 1\]"),
    ],
)
def test_invalid_data_raises_before_training(net, data, change, message):
    with pytest.raises(ValueError, match=message):
        fit(net, *change(*data), RECIPE)


def test_a_checkpoint_of_another_run_raises(net, data, tmp_path):
    fit(net, *data, replace(RECIPE, epochs=1), out=tmp_path)
    with pytest.raises(
        ValueError,
        match=r"another recipe\. Use a separate folder for this run, or pass resume=False",
    ):
        fit(net, *data, replace(RECIPE, epochs=2), out=tmp_path)
    with pytest.raises(ValueError, match="another seed"):
        fit(net, *data, replace(RECIPE, epochs=1), out=tmp_path, seed=1)
    (tmp_path / "checkpoint.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(ValueError, match="is not a readable checkpoint"):
        fit(net, *data, replace(RECIPE, epochs=1), out=tmp_path)


def test_a_loss_that_is_not_finite_raises(net, data):
    with pytest.raises(FloatingPointError, match="Lower the learning rate, now 1e\\+30"):
        fit(
            nn.Sequential(nn.Flatten(), nn.Linear(16, 3)),
            *data,
            replace(RECIPE, optimizer=SGD(rate=1e30), method=Standard()),
        )


@pytest.mark.parametrize(
    "wrong",
    [{"epochs": 0}, {"batch_size": 0}, {"dev_share": 0.0}, {"dev_share": 1.0}, {"patience": 0}],
)
def test_an_invalid_recipe_raises(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        replace(RECIPE, **wrong)
