"""Readers of binary formats: any bytes give data or a `DataError`, and nothing else."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import tracemalloc
import zipfile
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from saddlepoint.data import load_data
from saddlepoint.data.idx import read_idx
from saddlepoint.data.npz import read_npz
from saddlepoint.data.ppm import read_ppm
from saddlepoint.data.record import DataError
from saddlepoint.data.svhn import _read as read_mat
from saddlepoint.data.tiny_imagenet import _decode as read_image
from saddlepoint.data.unpickle import unpickle_arrays

X = np.arange(2 * 3 * 4 * 4, dtype=np.uint8).reshape(2, 3, 4, 4)
Y = np.array([0, 1])


def npz() -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, x=X, y=Y)
    return file.getvalue()


def mat() -> bytes:
    from scipy.io import savemat

    file = io.BytesIO()
    savemat(file, {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[1], [2]])})
    return file.getvalue()


def jpeg() -> bytes:
    image = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    image.fromarray(np.zeros((64, 64, 3), np.uint8)).save(file, "JPEG")
    return file.getvalue()


READERS = {
    "idx": (read_idx, lambda: b"\0\0\x08\3" + struct.pack(">3I", 2, 4, 4) + bytes(32)),
    "ppm": (read_ppm, lambda: b"P6\n4 4\n255\n" + bytes(48)),
    "npz": (read_npz, npz),
    "mat": (read_mat, mat),
    "jpeg": (read_image, jpeg),
    "pickle": (
        lambda path: unpickle_arrays(path.read_bytes(), str(path)),
        lambda: pickle.dumps({"data": X, "labels": [0, 1]}, protocol=2),
    ),
}
MANY = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,  # so that a failure belongs to the change that caused it
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.mark.parametrize("kind", READERS)
def test_damaged_bytes_give_data_or_a_data_error(kind, tmp_path):
    read, make = READERS[kind]
    whole = make()
    path = tmp_path / f"data.{kind}"

    def attempt(content: bytes) -> None:
        path.write_bytes(content)
        try:
            read(path)
        except DataError:
            return

    @MANY
    @given(st.integers(0, len(whole)), st.binary(max_size=12), st.integers(0, 12))
    def spliced(place, inserted, removed):
        attempt(whole[:place] + inserted + whole[place + removed :])

    @MANY
    @given(st.integers(0, min(len(whole), 40) - 1), st.integers(0, 255))
    def headers(place, byte):
        attempt(whole[:place] + bytes([byte]) + whole[place + 1 :])

    @MANY
    @given(st.binary(max_size=60))
    def noise(content):
        attempt(content)
        attempt(whole[:8] + content)

    attempt(whole)
    spliced()
    headers()
    noise()


def test_a_file_that_unpacks_to_absurd_sizes_is_refused_before_memory_is_allocated(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("saddlepoint.data.npz._SMALL", 2**24)
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("x.npy", "y.npy"):
            with archive.open(name, "w", force_zip64=True) as file:
                for _ in range(20):
                    file.write(bytes(2**20))
    assert peak_of(read_npz, path, "unpacks to") < 10 * 2**20


def peak_of(read, path, match: str) -> int:
    """Bytes that Python allocated while a file was refused."""
    tracemalloc.start()
    with pytest.raises(DataError, match=match):
        read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize(
    ("shape", "match"),
    [((10, 28, 28), "declares .* but contains more"), ((2**31, 2**31), "contains more than")],
)
def test_a_gzip_bomb_is_refused_before_it_is_unpacked(tmp_path, monkeypatch, shape, match):
    """100 MB of zeros after the declared content; the limits are smaller than the real ones."""
    monkeypatch.setattr("saddlepoint.data.files._SMALL", 2**20)
    monkeypatch.setattr("saddlepoint.data.files._RATIO", 10)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    with gzip.open(path, "wb") as file:
        file.write(bytes((0, 0, 8, len(shape))) + struct.pack(f">{len(shape)}I", *shape))
        for _ in range(100):
            file.write(bytes(2**20))
    assert peak_of(read_idx, path, match) < 10 * 2**20


def test_a_batch_of_cifar_that_is_too_large_is_refused_before_it_is_read(tmp_path, monkeypatch):
    """A sparse file needs no space on the disk."""
    monkeypatch.setattr("saddlepoint.data.files._SMALL", 2**20)
    path = tmp_path / "cifar-10-batches-py" / "test_batch"
    path.parent.mkdir()
    with path.open("wb") as file:
        file.truncate(2**27)
    read = partial(load_data, "cifar10", split="test")
    assert peak_of(lambda path: read(root=tmp_path), path, "contains more than") < 10 * 2**20


@pytest.mark.parametrize("shape", [(2**40, 3, 4, 4), (2**31, 2**31)])
def test_a_shape_that_does_not_fit_the_file_is_refused(tmp_path, shape):
    path = tmp_path / "shape.npz"
    header = io.BytesIO()
    described = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, described)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", header.getvalue() + bytes(10))
        archive.writestr("y.npy", b"")
    with pytest.raises(DataError, match=r"needs .* bytes, but the file holds"):
        read_npz(path)


def test_a_label_that_is_no_class_number_is_refused(tmp_path):
    np.savez(tmp_path / "labels.npz", x=X, y=np.array([0, 10**8]))
    with pytest.raises(DataError, match="class numbers below 1000000, found 100000000"):
        read_npz(tmp_path / "labels.npz")
