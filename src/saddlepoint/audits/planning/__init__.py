"""The choice of adversaries for a target, a threat model and a budget."""
