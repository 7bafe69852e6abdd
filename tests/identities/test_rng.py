"""Random keys: randomness as a function of seed, example, draw and position."""

from __future__ import annotations

import math

import pytest
import torch
from tests.problems import keys

from saddlepoint.rng import Keys, _mix, _mix_number, _mix_tensor

N = 2000
D = 50
# Each statistical bound is five standard deviations of the statistic over N D = 100000 numbers.
SIGMAS = 5.0
F64 = torch.float64


def test_uniform_has_the_moments_of_the_uniform() -> None:
    u = keys(N).uniform((D,), F64)
    assert u.shape == (N, D)
    assert (u >= 0).all()
    assert (u < 1).all()
    assert abs(u.mean() - 1 / 2) < SIGMAS * math.sqrt(1 / 12 / (N * D))
    assert abs(u.var() - 1 / 12) < SIGMAS * math.sqrt(1 / 180 / (N * D))


def test_normal_has_the_moments_of_the_normal() -> None:
    for count in (D, D - 1):  # Box-Muller makes pairs; an odd count drops one
        z = keys(N).normal((count,), F64)
        total = N * count
        assert z.shape == (N, count)
        for k, (moment, variance) in enumerate([(0, 1), (1, 2), (0, 15), (3, 96)], start=1):
            assert abs((z**k).mean() - moment) < SIGMAS * math.sqrt(variance / total)


def test_signs_and_integers_are_uniform() -> None:
    assert abs(keys(N).signs((D,), F64).mean()) < SIGMAS / math.sqrt(N * D)
    count = torch.bincount(keys(N).integers(7, (D,)).flatten(), minlength=7)
    assert len(count) == 7
    assert ((count - N * D / 7).abs() < SIGMAS * math.sqrt(N * D / 7)).all()


def test_float32_draws_stay_below_one() -> None:
    u = keys(N).uniform((500,))
    assert u.dtype == torch.float32
    assert (u < 1).all()
    assert keys(N).normal((500,)).isfinite().all()


def test_rows_positions_draws_and_seeds_are_independent() -> None:
    """Correlations of 100000 pairs are normal with sigma 1 / sqrt(100000)."""

    def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
        return abs(float((a * b).mean())) / math.sqrt(a.numel() / (N * D)) * math.sqrt(a.numel())

    z = keys(N).normal((D,), F64)
    others = [
        (z[1:], z[:-1]),
        (z[:, 1:], z[:, :-1]),
        (z, keys(N).fold_in(0).normal((D,), F64)),
        (keys(N).fold_in(0).normal((D,), F64), keys(N).fold_in(1).normal((D,), F64)),
        (z, keys(N, seed=1).normal((D,), F64)),
        (z[:, : D // 2], z[:, D // 2 :]),  # cosine and sine of Box-Muller
    ]
    for a, b in others:
        assert correlation(a, b) < SIGMAS
    assert len(torch.unique(torch.cat([keys(N).fold_in(k).state for k in range(20)]))) == 20 * N


def test_the_draw_of_a_row_does_not_depend_on_the_other_rows() -> None:
    ids = torch.tensor([7, 3, 99, 0])
    together = Keys.of(5, ids)
    order = torch.tensor([2, 0, 3, 1])
    for draw in (
        lambda c: c.uniform((3, 2), F64),
        lambda c: c.normal((5,), F64),
        lambda c: c.signs((4,)),
        lambda c: c.integers(9),
    ):
        assert torch.equal(draw(together[order]), draw(together)[order])
        assert torch.equal(draw(Keys.of(5, ids[1:2])), draw(together)[1:2])


def test_a_longer_draw_starts_with_the_shorter_one() -> None:
    assert torch.equal(keys(3).uniform((10,), F64)[:, :4], keys(3).uniform((4,), F64))


def test_fold_in_takes_one_salt_or_one_per_row() -> None:
    c = keys(4)
    salt = torch.tensor([3, 1, -4, 2**40])
    each = torch.stack([c.fold_in(int(s)).state[i] for i, s in enumerate(salt)])
    assert torch.equal(c.fold_in(salt).state, each)
    assert not torch.equal(c.fold_in(1).fold_in(2).state, c.fold_in(2).fold_in(1).state)
    assert torch.equal(
        c.fold_in(2**64 + 5).state, c.fold_in(5).state
    )  # salts are taken modulo 2^64


def test_root_returns_to_the_origin() -> None:
    c = keys(4)
    assert torch.equal(c.fold_in(1).fold_in(2).root().state, c.state)
    rooted = c.fold_in(1).as_root()
    assert torch.equal(rooted.state, c.fold_in(1).state)
    assert torch.equal(rooted.fold_in(2).root().state, c.fold_in(1).state)
    assert torch.equal(rooted.fold_in(2)[torch.tensor([2])].root().state, c.fold_in(1).state[2:3])


def test_the_batch_seed_depends_on_the_set_of_rows_only() -> None:
    c = keys(5)
    assert (
        c.batch_seed()
        == c[torch.tensor([4, 2, 0, 1, 3])].batch_seed()
        != c[torch.arange(4)].batch_seed()
    )
    assert 0 <= c.batch_seed() < 2**63


def test_the_first_numbers_are_those_of_splitmix64() -> None:
    """Published outputs of SplitMix64 from state 1234567.

    They are those of Vigna's reference generator, also in the Rosetta collection.
    """
    state = Keys(torch.tensor([1234567]), torch.tensor([1234567]))
    want = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert [int(b) % 2**64 for b in state._bits(5)[0]] == want


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_uniform_numbers_lie_below_one_and_use_every_bit_of_their_type(dtype: torch.dtype) -> None:
    """100 000 draws of 2^-bits steps: the last bit is set in about half of them."""
    u = Keys.of(0, torch.arange(100)).uniform((1000,), dtype)
    assert u.dtype == dtype
    assert ((u >= 0) & (u < 1)).all()
    steps = u.double() * 2 / torch.finfo(dtype).eps
    assert 0.45 < (steps % 2 == 1).double().mean() < 0.55
    assert Keys.of(0, torch.arange(100)).normal((1000,), dtype).isfinite().all()


def test_arrays_tensors_and_single_numbers_give_the_same_bits() -> None:
    """A GPU computes with tensors, the CPU with arrays, and salts are Python numbers."""
    edges = torch.tensor([0, 1, -1, 2**31, 2**63 - 1, -(2**63), 0x123456789ABCDEF])
    values = torch.cat([edges, keys(100).state])
    expected = _mix_tensor(values)
    assert torch.equal(_mix(values), expected)
    assert torch.equal(_mix(values[None, ::2]), expected[None, ::2])
    assert [_mix_number(value) for value in values.tolist()] == expected.tolist()
    assert torch.equal(_mix(values[1]), expected[1])
