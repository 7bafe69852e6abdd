"""Which adversaries run against a target, and why."""
