"""Attacks: optimizers over an oracle and a perturbation set."""
