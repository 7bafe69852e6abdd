"""The command that repeats a run."""

from __future__ import annotations

import shlex

from saddlepoint.runs.options import option_words
from saddlepoint.runs.spec import RunSpec


def command(spec: RunSpec) -> str:
    """The command line that runs the same audit again.

    Attacks with settings of their own have no option. The command then runs the copy of the
    specification that is kept in the folder of the run.
    """
    words = option_words(spec)
    if words is None:
        return "saddlepoint run spec.toml"
    return shlex.join(["saddlepoint", "audit", spec.target, *words])
