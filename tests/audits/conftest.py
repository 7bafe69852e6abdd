"""Fixtures that several audit tests only read."""

from __future__ import annotations

import pytest
from tests.audits.linear_defenses import collect_evidence


@pytest.fixture(scope="session")
def evidence_of():
    """Collects the evidence for a target and adversaries once per session.

    Targets and adversaries are compared by identity, so tests must pass module-level constants to
    share evidence. The cache keeps them alive, so that identities stay unique.
    """
    cache = {}

    def evidence(target, adversaries):
        key = (id(target), *map(id, adversaries))
        if key not in cache:
            cache[key] = (target, adversaries, collect_evidence(target, adversaries))
        return cache[key][-1]

    return evidence
