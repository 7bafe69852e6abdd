"""The game: threats, adversaries, the referee, and the record of who was right."""

from saddlepoint.game.adversary import Adversary, Cascade, Direct, MultiTarget, Restarts, Standing, Transfer, Turn
from saddlepoint.game.joint import JointEquilibrium
from saddlepoint.game.outcomes import Outcomes, evaluate
from saddlepoint.game.play import Episode, Stand, play
from saddlepoint.game.threat import Threat

__all__ = [
    "Adversary",
    "Cascade",
    "Direct",
    "Episode",
    "JointEquilibrium",
    "MultiTarget",
    "Outcomes",
    "Restarts",
    "Stand",
    "Standing",
    "Threat",
    "Transfer",
    "Turn",
    "evaluate",
    "play",
]
