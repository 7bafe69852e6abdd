"""Attacks: optimizers over an oracle and a space."""
