"""A small network with three different exits."""

import torch
from torch import nn

from saddlepoint.attacks.spaces import Linf

N = 12
CLASSES = 4
SPACE = Linf(0.1)


class ThreeExits(nn.Module):
    def __init__(self):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            self.parts = nn.ModuleList(nn.Linear(9, 9) for _ in range(3))
            self.heads = nn.ModuleList(nn.Linear(9, CLASSES) for _ in range(3))

    def forward(self, x):
        z = x.flatten(1)
        exits = []
        for part, head in zip(self.parts, self.heads, strict=True):
            z = part(z).tanh()
            exits.append(head(3 * z))
        return exits
