"""Attacks: optimisers over an oracle and a space."""
