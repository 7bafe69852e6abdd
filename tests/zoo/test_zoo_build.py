"""Rebuilding a model from its recipe is reproducible."""

from dataclasses import replace

import pytest
import torch

from saddlepoint import zoo
from saddlepoint.attacks.pgd import PGD
from saddlepoint.evaluation import FixedPoints
from saddlepoint.training import PGDTraining, fit, initial
from saddlepoint.zoo import RECIPES, rebuild, recipe

QUICK = replace(
    RECIPES["digits-pgd"],
    name="quick",
    method=PGDTraining(PGD(steps=1)),
    epochs=1,
    batch_size=256,
    select=FixedPoints(),
)


def test_rebuilding_does_not_depend_on_threads_or_the_global_generator(tmp_path):
    threads = torch.get_num_threads()
    generator = torch.get_rng_state()
    first = rebuild(QUICK, tmp_path / "a", adversaries=(FixedPoints(),))
    try:
        torch.set_num_threads(2)
        torch.rand(7)
        second = rebuild(QUICK, tmp_path / "b", adversaries=(FixedPoints(),))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
        torch.set_rng_state(generator)
    assert first == second
    assert (
        first.sha256 != rebuild(QUICK, tmp_path / "c", seed=1, adversaries=(FixedPoints(),)).sha256
    )
    for name in ("quick.json", "quick.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert zoo.entry("quick", tmp_path / "a") == first
    assert zoo.load("quick", tmp_path / "a") is not None


def test_the_initial_network_is_a_function_of_the_seed():
    a, b, c = (initial(QUICK, seed).state_dict()["layers.1.weight"] for seed in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_runs(name):
    coarse = replace(RECIPES[name], epochs=1, select=FixedPoints(), batch_size=40)
    shape = (50, 3, 32, 32) if coarse.data == "cifar10" else (50, 1, 8, 8)
    x = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    y = torch.arange(50) % 10
    assert len(fit(initial(coarse, 0), x, y, coarse).history) == 1


def test_an_unknown_recipe_raises_and_names_the_nearest():
    with pytest.raises(
        ValueError, match=r"no recipe is called 'digit-trades'\. Did you mean 'digits-trades'\?"
    ):
        recipe("digit-trades")
