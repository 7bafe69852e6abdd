"""Any change of any file of a run gives exit code 0, 1 or 2, and never a traceback.

These are samples; `python -m benchmarks.mutations` runs 2,400 changes and 600 command lines.
"""

from __future__ import annotations

import pytest
from benchmarks.mutations import FILES, KINDS, changed_files, command_lines, original

CHANGES = 4  # of each kind of file
FEWEST = 24  # of each kind of run
LINES = 60


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_file_never_leads_to_a_traceback(tmp_path, kind):
    before = original(kind, tmp_path / "original")
    cases = list(changed_files(kind, before, max(CHANGES * len(FILES[kind]), FEWEST), kind))
    assert [case for case in cases if case.traceback] == []
    assert not [case for case in cases if case.verified.startswith("traceback")]
    assert len({case.exit_code for case in cases}) > 1  # some changes are noticed, some are not


def test_no_command_line_leads_to_a_traceback():
    cases = list(command_lines(LINES, seed=0))
    assert [case for case in cases if case.traceback] == []
    assert {case.exit_code for case in cases} == {0, 2}
