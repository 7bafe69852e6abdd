"""A fixture for pytest: `def test_robust(audit): audit(net, x, y, at_least=0.45)`.

pytest loads this file in every session, so torch is imported only when the fixture is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from numbers import Real
from typing import TYPE_CHECKING, Any

import pytest

from saddlepoint.phrases import between_0_and_1

if TYPE_CHECKING:
    from saddlepoint.audits import Audit

_OWN = ("at_least", "credible")  # arguments of the fixture alone


@pytest.fixture
def audit(request: pytest.FixtureRequest) -> Callable[..., Audit]:
    """Audit a target; the test fails if robust accuracy is too low or a claim is refuted.

        def test_robust(audit):
            audit(net, x, y, threat="8/255", budget="quick", at_least=0.45)

    The function takes the arguments of `saddlepoint.audit` and two more: `at_least`, the lowest
    robust accuracy that passes, and `credible=True`, which also requires the verdict *credible*,
    and therefore a larger budget than "quick". It returns the audit. The numbers are written into
    the JUnit file as properties of the test.
    """

    def run(
        target: Any,
        *data: Any,
        at_least: float | None = None,
        credible: bool = False,
        **arguments: Any,
    ) -> Audit:
        from saddlepoint import api

        __tracebackhide__ = True  # pytest shows the line of the test
        _check_names(arguments)
        _check(at_least, credible, arguments.get("budget"))
        result = api.audit(target, *data, **{"progress": False, **arguments})
        # The fixture `record_property` does the same and warns about the format of the JUnit file.
        request.node.user_properties += [
            ("clean_accuracy", result.clean_accuracy),
            ("robust_accuracy", result.robust_accuracy),
            ("verdict", str(result.verdict)),
        ]
        if problems := _problems(result, at_least, credible):
            about = f"{result.target}, {result.threat}: {result.summary()}"
            pytest.fail("\n".join([*problems, about]), pytrace=False)
        return result

    return run


def _check_names(arguments: Iterable[str]) -> None:
    """Reject a misspelled argument of the fixture; `saddlepoint.audit` does not know its names."""
    __tracebackhide__ = True
    for name in arguments:
        for meant in get_close_matches(name, _OWN, n=1, cutoff=0.75):
            raise TypeError(
                f"audit() got an unexpected keyword argument {name!r}. Did you mean {meant!r}?"
            )


def _check(at_least: float | None, credible: bool, budget: object) -> None:
    """Reject requirements that no audit can meet, before it runs."""
    __tracebackhide__ = True
    if at_least is not None and not isinstance(at_least, Real):
        raise TypeError(
            f"at_least: expected a number between 0 and 1, such as 0.45, got {at_least!r}."
        )
    if at_least is not None and not 0 <= at_least <= 1:
        raise ValueError(f"at_least: {between_0_and_1(at_least)}")
    if credible and budget == "quick":
        raise ValueError(
            "credible=True needs budget='standard' or 'thorough': a quick audit runs only a part "
            "of the checklist, so it is never credible."
        )


def _problems(result: Audit, at_least: float | None, credible: bool) -> list[str]:
    """Why the test fails; empty if it passes."""
    from saddlepoint.reports import ci

    missed = [one.message for one in ci.requirements(result, at_least) if not one.met]
    if credible and result.verdict != "credible":
        missed.append(f"the verdict is {result.verdict}, not credible.")
    return missed
