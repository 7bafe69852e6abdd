"""Runtime masking and cleansing: the images it is tuned on, its state, and what stays fixed."""

from __future__ import annotations

import math

import pytest
import torch
from tests.zoo.transductive_problem import answers, context, digits, fingerprint, trained
from torch import nn

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf
from saddlepoint.defenses import Plain
from saddlepoint.evaluation import Direct, FixedPoints, Threat, Transfer, evaluate
from saddlepoint.evaluation.referee import play
from saddlepoint.training.loop import cross_entropy_epochs
from saddlepoint.training.recipe import Adam, Shift, unchanged
from saddlepoint.zoo.layers import features, penultimate
from saddlepoint.zoo.transductive import RMC, Library, Tuning

SPACE = Linf(0.15)
TEST = digits("test", 60)


@pytest.fixture(scope="module")
def library() -> Library:
    data = digits()
    return Library.build(
        trained(),
        data.x,
        data.y,
        space=SPACE,
        attack=PGD(steps=3, step_size=0.05),
        copies=2,
        augment=unchanged,
        batch_size=150,
    )


@pytest.fixture(scope="module")
def quick(library: Library) -> RMC:
    return RMC(trained(), library, neighbors=60, tuning=Tuning(epochs=2, rate=1e-3))


def test_the_counts_of_the_paper() -> None:
    n = 1200
    library = Library(
        torch.rand(n, 1, 2, 2), torch.zeros(n, dtype=torch.long), torch.rand(n, 3), clean=240
    )
    rmc = RMC(nn.Linear(4, 2), library)
    rows = rmc.neighborhood(torch.zeros(3), seed=5)
    assert (len(rows.train), len(rows.validation)) == (973, 51)
    order = library.nearest(torch.zeros(3), 1024)
    nearest = set(order[:204].tolist())
    assert set(rows.validation.tolist()) < nearest
    assert len(nearest & set(rows.train.tolist())) == 153
    assert len(set(rows.train.tolist()) - nearest) == 820
    assert sorted([*rows.train.tolist(), *rows.validation.tolist()]) == sorted(order.tolist())
    calibration = rmc.calibration(seed=5)
    assert (len(calibration.train), len(calibration.validation)) == (896, 128)
    assert int(torch.cat(calibration).max()) < 240  # only images that were not attacked
    # With replacement: 1024 draws miss some of 240 images with probability 0.96.
    assert len(torch.cat(calibration).unique()) < 240


def test_the_validation_images_depend_on_the_seed() -> None:
    n = 100
    library = Library(
        torch.rand(n, 1, 2, 2), torch.zeros(n, dtype=torch.long), torch.rand(n, 3), clean=n
    )
    rmc = RMC(nn.Linear(4, 2), library, neighbors=100)
    assert torch.equal(
        rmc.neighborhood(torch.zeros(3), 1).validation,
        rmc.neighborhood(torch.zeros(3), 1).validation,
    )
    assert not torch.equal(
        rmc.neighborhood(torch.zeros(3), 1).validation,
        rmc.neighborhood(torch.zeros(3), 2).validation,
    )


def test_neighbors_have_the_smallest_euclidean_distance() -> None:
    spread = torch.tensor([[3.0, 4.0], [0.0, 1.0], [2.0, 0.0], [0.0, -1.0], [9.0, 0.0]])
    library = Library(torch.zeros(5, 1, 1, 1), torch.zeros(5, dtype=torch.long), spread, clean=5)
    # The distances are 1, 1, 2 and 5; of equal distances the first row comes first.
    assert library.nearest(torch.zeros(2), 4).tolist() == [1, 3, 2, 0]


def test_the_library_has_clean_images_followed_by_attacked_copies(library: Library) -> None:
    data = digits()
    n = len(data.x)
    assert len(library.x) == len(library.y) == len(library.features) == 3 * n
    assert library.clean == n
    assert torch.equal(library.x[:n], data.x)
    assert torch.equal(library.y, data.y.repeat(3))
    for k in (1, 2):
        copies = library.x[k * n : (k + 1) * n]
        moved = (copies - data.x).abs().flatten(1).amax(1)
        assert (moved <= 0.15 + 1e-6).all()
        assert moved.mean() > 0.1
        with torch.no_grad():
            increase = cross_entropy(trained()(copies), data.y) - cross_entropy(
                trained()(data.x), data.y
            )
        assert increase.mean() > 0.5
    # Each pass has its own randomness.
    assert not torch.equal(library.x[n : 2 * n], library.x[2 * n :])
    expected = features(trained(), library.x, penultimate(trained()))
    torch.testing.assert_close(library.features, expected, rtol=0, atol=0)
    assert library.features.shape[1] == 24


def test_the_library_is_augmented() -> None:
    data = digits(n=20)
    built = Library.build(
        trained(), data.x, data.y, space=SPACE, attack=PGD(1), copies=1, augment=Shift(1)
    )
    assert not torch.equal(built.x[:20], data.x)


def test_too_many_or_too_few_neighbors_raise(library: Library) -> None:
    with pytest.raises(
        ValueError,
        match=r"1201 neighbors from a library of 1200 images\. Build a larger library or use fewer",
    ):
        RMC(trained(), library, neighbors=1201)
    with pytest.raises(ValueError, match="less than two images"):
        RMC(trained(), library, neighbors=9)


def test_with_learning_rate_zero_it_is_the_base_network(library: Library) -> None:
    # Batch norm statistics would still change, so this network has none.
    base = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))
    data = digits()
    own = Library(library.x, library.y, features(base, library.x, penultimate(base)), len(data.x))
    adapted = RMC(base, own, neighbors=40, tuning=Tuning(epochs=2, rate=0.0)).adapt(
        TEST.x[:3], context(TEST.x[:3])
    )
    torch.testing.assert_close(answers(adapted, TEST.x[:3]), base(TEST.x[:3]), rtol=0, atol=1e-6)


def test_adapting_changes_the_output_but_not_the_original_defense(quick: RMC) -> None:
    before = fingerprint(quick)
    first = quick.adapt(TEST.x[:1], context(TEST.x[:1]))
    assert fingerprint(quick) == before
    state = fingerprint(first)
    second = first.adapt(TEST.x[1:2], context(TEST.x[1:2], seed=1))
    assert fingerprint(first) == state
    assert fingerprint(quick) == before
    outputs = [answers(d, TEST.x[:1]) for d in (quick, first, second)]
    assert all(not torch.equal(outputs[i], outputs[j]) for i, j in ((0, 1), (1, 2), (0, 2)))


def test_neighbors_are_found_by_the_base_network_for_the_whole_stream(quick: RMC) -> None:
    later = quick.adapt(TEST.x[:1], context(TEST.x[:1])).adapt(TEST.x[1:2], context(TEST.x[1:2]))
    assert later.base is quick.base
    assert later.library is quick.library


def test_the_output_is_a_function_of_the_seed(quick: RMC) -> None:
    x = TEST.x[:1]
    again, other = (answers(quick.adapt(x, context(x, seed)), x) for seed in (0, 1))
    assert torch.equal(answers(quick.adapt(x, context(x)), x), again)
    assert not torch.equal(again, other)


def test_a_batch_is_adapted_to_row_by_row(quick: RMC) -> None:
    together = play(quick, FixedPoints(), TEST.x[:4], TEST.y[:4], Threat(SPACE), batch_size=4)
    one_by_one = play(quick, FixedPoints(), TEST.x[:4], TEST.y[:4], Threat(SPACE), batch_size=1)
    torch.testing.assert_close(together.margin, one_by_one.margin, rtol=0, atol=1e-5)


def test_a_defense_adapted_to_several_images_needs_as_many_rows(quick: RMC) -> None:
    adapted = quick.adapt(TEST.x[:2], context(TEST.x[:2]))
    assert adapted.coupled
    with pytest.raises(ValueError, match="adapted to 2 images and received 3"):
        answers(adapted, TEST.x[:3])
    assert answers(quick.adapt(TEST.x[:1], context(TEST.x[:1])), TEST.x[:3]).shape == (3, 10)


def test_the_state_of_adam_is_kept_along_the_stream(quick: RMC) -> None:
    adapted = quick.adapt(TEST.x[:1], context(TEST.x[:1]))
    steps = {int(s["step"]) for s in adapted.state.adam["state"].values()}
    assert steps == {4}  # two epochs of one batch to adapt, two to calibrate
    later = adapted.adapt(TEST.x[1:2], context(TEST.x[1:2]))
    assert {int(s["step"]) for s in later.state.adam["state"].values()} == {8}


@pytest.mark.parametrize(
    ("tuning", "epochs"),
    [
        # The first epoch sets the lowest loss, and three more do not lower it.
        (Tuning(epochs=9, patience=3, rate=0.0), 4),
        # No training loss is below zero, so it never stops early.
        (Tuning(epochs=9, patience=3, rate=0.0, enough=0.0), 9),
        (Tuning(epochs=2, patience=3, rate=0.0), 2),
    ],
)
def test_when_tuning_stops(
    monkeypatch: pytest.MonkeyPatch, library: Library, tuning: Tuning, epochs: int
) -> None:
    losses: list[float] = []

    def recording(*args, **options):
        for loss in cross_entropy_epochs(*args, **options):
            losses.append(loss)
            yield loss

    monkeypatch.setattr("saddlepoint.zoo.transductive.rmc.cross_entropy_epochs", recording)
    base = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    own = Library(library.x, library.y, library.x.flatten(1), library.clean)
    RMC(base, own, neighbors=40, tuning=tuning).adapt(TEST.x[:1], context(TEST.x[:1]))
    assert len(losses) == 2 * epochs  # once to adapt and once to calibrate


def test_neighbors_reveal_the_label_of_images_attacked_on_the_base_network(
    library: Library,
) -> None:
    # D' was built with the same attack on the same network, so an attacked image is close to
    # attacked copies of its own class.
    base = Direct("pgd", PGD(steps=3, step_size=0.05), loss=cross_entropy)
    rmc = RMC(trained(), library, neighbors=100, tuning=Tuning(epochs=6, rate=2e-3))
    transfer = Transfer(base, Plain(trained()))
    n = 10
    static = play(Plain(trained()), base, TEST.x[:n], TEST.y[:n], Threat(SPACE)).correct.mean()
    cleansed = evaluate(rmc, [transfer], TEST.x[:n], TEST.y[:n], threat=SPACE).accuracy()[0, 0]
    assert cleansed > static + 0.2


def test_features_need_a_linear_layer_and_hooks_are_removed() -> None:
    with pytest.raises(ValueError, match="has no linear layer"):
        penultimate(nn.Conv2d(1, 1, 1))
    assert not math.isnan(float(features(trained(), TEST.x[:3], penultimate(trained())).sum()))
    assert not any(module._forward_hooks for module in trained().modules())
    assert penultimate(trained()) == "6"


def test_adaptation_also_works_without_grad(quick: RMC) -> None:
    with torch.no_grad():
        adapted = quick.adapt(TEST.x[:1], context(TEST.x[:1]))
    assert torch.equal(
        answers(adapted, TEST.x), answers(quick.adapt(TEST.x[:1], context(TEST.x[:1])), TEST.x)
    )


def test_cross_entropy_epochs_lower_the_loss() -> None:
    data = digits()
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    losses = cross_entropy_epochs(
        net, Adam(1e-2).over(net.parameters()), data.x, data.y, batch_size=64, seed=0, name="test"
    )
    first, *_, last = (next(losses) for _ in range(6))
    assert last < first / 2
