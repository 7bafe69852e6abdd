"""The game: threats, adversaries, the referee, and the record of who was right."""

from saddlepoint.game.adversary import (
    Adversary,
    Cascade,
    CleanCopies,
    Direct,
    MultiTarget,
    Peak,
    Restarts,
    Standing,
    Transfer,
    Turn,
)
from saddlepoint.game.among import Among
from saddlepoint.game.control import Control
from saddlepoint.game.joint import JointEquilibrium
from saddlepoint.game.onward import Onward
from saddlepoint.game.order import ByLabel, Natural, Searched
from saddlepoint.game.outcomes import Outcomes, evaluate
from saddlepoint.game.play import Episode, Stand, play
from saddlepoint.game.pursuit import Pursuit
from saddlepoint.game.standard import autoattack, rand
from saddlepoint.game.threat import Threat
from saddlepoint.game.transductive import (
    CleanFallback,
    FixedPoint,
    GreedyModelSpace,
    Portfolio,
    Retrained,
    Skip,
    high_confidence,
)

__all__ = [
    "Adversary",
    "Among",
    "ByLabel",
    "Cascade",
    "CleanCopies",
    "CleanFallback",
    "Control",
    "Direct",
    "Episode",
    "FixedPoint",
    "GreedyModelSpace",
    "JointEquilibrium",
    "MultiTarget",
    "Natural",
    "Onward",
    "Outcomes",
    "Peak",
    "Portfolio",
    "Pursuit",
    "Restarts",
    "Retrained",
    "Searched",
    "Skip",
    "Stand",
    "Standing",
    "Threat",
    "Transfer",
    "Turn",
    "autoattack",
    "evaluate",
    "high_confidence",
    "play",
    "rand",
]
