"""Probes: functional tests of a target, one file per group of traits."""
