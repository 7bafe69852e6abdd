"""Games between an attacker and a defender that choose subsets of the exits of a network."""

from saddlepoint.games.aimer import aimer
from saddlepoint.games.exit_game import exit_game
from saddlepoint.games.need import NEED

__all__ = ["NEED", "aimer", "exit_game"]
