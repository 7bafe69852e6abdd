"""Points that other programs saved."""

from __future__ import annotations

import pytest

from saddlepoint.data.points import read_points
from saddlepoint.data.record import DataError


@pytest.mark.parametrize("kind", ["npz", "npy", "pt", "pth"])
def test_a_file_without_arrays_is_rejected_without_unsafe_advice(tmp_path, kind):
    path = tmp_path / f"points.{kind}"
    path.write_text("hello\n")
    with pytest.raises(DataError, match="holds no plain arrays, or is damaged") as found:
        read_points(path)
    assert "pickle" not in str(found.value)
