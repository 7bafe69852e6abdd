"""The recipes that come with the package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches

from saddlepoint.attack.space import Linf
from saddlepoint.game import Stand
from saddlepoint.train.method import FAT, MART, TRADES, FastTraining, PGDTraining, Standard
from saddlepoint.train.recipe import SGD, Cosine, Recipe
from saddlepoint.zoo.nets import DigitsCNN

_DIGITS = Recipe(
    name="digits-pgd",
    data="digits",
    net=DigitsCNN,
    method=PGDTraining(),
    space=Linf(0.15),  # a pixel is one of 0/16 .. 16/16: it may move by about two and a half steps
    epochs=40,
    batch_size=64,
    optimizer=SGD(rate=0.05),
    schedule=Cosine(warmup=0.05),
    dev_share=0.2,
)

RECIPES: Mapping[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        replace(_DIGITS, name="digits-standard", method=Standard(), select=Stand()),
        _DIGITS,
        replace(_DIGITS, name="digits-trades", method=TRADES()),
        replace(_DIGITS, name="digits-mart", method=MART()),
        replace(_DIGITS, name="digits-fat", method=FAT()),
        replace(_DIGITS, name="digits-fast", method=FastTraining()),
    )
}


def recipe(name: str) -> Recipe:
    """The recipe of that name."""
    if name not in RECIPES:
        near = get_close_matches(name.lower().replace("_", "-"), RECIPES, n=1, cutoff=0.4)
        advice = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"no recipe is called {name!r}.{advice} Known: {', '.join(RECIPES)}.")
    return RECIPES[name]
