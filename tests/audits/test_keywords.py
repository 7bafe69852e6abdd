"""A keyword argument of another library is answered with the argument of ours."""

from __future__ import annotations

import inspect

import pytest

import saddlepoint as sp


@pytest.mark.parametrize(
    ("function", "arguments", "advice"),
    [
        (sp.audit, {"eps": 8 / 255}, "threat=sp.Linf(8/255)"),
        (sp.audit, {"epsilon": 0.3}, "threat=sp.Linf(0.3)"),
        (sp.attack, {"eps": 4 / 255}, "threat=sp.Linf(4/255)"),
        (sp.curve, {"eps": 8 / 255}, "radii=[8/255]"),
        (sp.compare, {"radius": 0.1}, "threat=sp.Linf(0.1)"),
        (sp.compare, {"model": None}, "sp.compare({'a': net_a, 'b': net_b}, x, y)"),
        (sp.audit, {"norm": "L2"}, "threat=sp.L2(0.5)"),
        (sp.audit, {"steps": 7}, "sp.PGD(steps=7)"),
        (sp.attack, {"steps": 7}, "method=sp.PGD(steps=7)"),
        (sp.audit, {"attacks_to_run": ["apgd-ce"]}, "adversaries=["),
        (sp.audit, {"dataloader": None}, "second argument, x"),
        (sp.probe, {"labels": None}, "third argument, y"),
        (sp.audit, {"verbose": True}, "progress=True"),
        (sp.audit, {"bugdet": "quick"}, "Did you mean 'budget'?"),
        (sp.probe, {"zzz": 1}, "Its arguments are: target, x, y, threat."),
    ],
)
def test_an_unknown_argument_names_the_right_one(function, arguments, advice):
    with pytest.raises(TypeError) as error:
        function(**arguments)
    (name,) = arguments
    assert f"unexpected keyword argument {name!r}" in str(error.value)
    assert advice in str(error.value)


def test_functions_keep_their_signature_and_their_documentation():
    assert "threat" in inspect.signature(sp.audit).parameters
    assert sp.audit.__doc__
    assert sp.audit.__name__ == "audit"
