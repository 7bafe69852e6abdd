"""Functional tests of a target, one file per family of traits: each asks, and says what it saw."""
