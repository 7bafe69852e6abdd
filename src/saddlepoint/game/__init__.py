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
from saddlepoint.game.joint import JointEquilibrium
from saddlepoint.game.outcomes import Outcomes, evaluate
from saddlepoint.game.play import Episode, Stand, play
from saddlepoint.game.standard import autoattack, rand
from saddlepoint.game.threat import Threat

__all__ = [
    "Adversary",
    "Cascade",
    "CleanCopies",
    "Direct",
    "Episode",
    "JointEquilibrium",
    "MultiTarget",
    "Outcomes",
    "Peak",
    "Restarts",
    "Stand",
    "Standing",
    "Threat",
    "Transfer",
    "Turn",
    "autoattack",
    "evaluate",
    "play",
    "rand",
]
