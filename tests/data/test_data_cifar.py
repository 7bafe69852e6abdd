"""CIFAR-10: both layouts contain the same images, and a pickle cannot execute code."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from tests.data.data_formats import random_bytes

from saddlepoint.data import DataError, load_data
from saddlepoint.data.unpickle import unpickle_arrays

X = random_bytes(12, 3072)
Y = np.arange(12, dtype=np.uint8) % 10
STEMS = [f"data_batch_{i}" for i in range(1, 6)]


@pytest.fixture(autouse=True)
def _two_rows_per_file(monkeypatch):
    monkeypatch.setattr("saddlepoint.data.cifar.ROWS_PER_FILE", 2)


def write_binary(root: Path) -> Path:
    folder = root / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    rows = np.concatenate([Y[:, None], X], axis=1)
    for i, stem in enumerate([*STEMS, "test_batch"]):
        (folder / f"{stem}.bin").write_bytes(rows[2 * i : 2 * i + 2].tobytes())
    return folder


def write_pickles(root: Path, protocol: int = 2) -> Path:
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for i, stem in enumerate([*STEMS, "test_batch"]):
        rows = slice(2 * i, 2 * i + 2)
        batch = {
            "batch_label": stem,
            "labels": Y[rows].tolist(),
            "data": X[rows],
            "filenames": ["a.png", "b.png"],
        }
        (folder / stem).write_bytes(pickle.dumps(batch, protocol=protocol))
    return folder


def python_2_pickle(x: np.ndarray, y: list[int]) -> bytes:
    """A pickle with the opcodes of the published files.

    Python 2 wrote them with protocol 2: byte-string keys, dtype align 0.
    """
    raw = x.tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01" + b"".join(b"M" + size.to_bytes(2, "little") for size in x.shape) + b"\x86"
        b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89T" + len(raw).to_bytes(4, "little") + raw + b"tb"
    )
    labels = b"](" + b"".join(b"K" + bytes((label,)) for label in y) + b"e"
    return b"\x80\x02}(U\x06labels" + labels + b"U\x04data" + array + b"u."


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_both_layouts_contain_the_same_images(tmp_path, split, protocol):
    write_binary(tmp_path / "a")
    write_pickles(tmp_path / "b" / "cifar10", protocol)
    binary, pickled = (load_data("cifar10", root=tmp_path / folder, split=split) for folder in "ab")
    assert binary.digest() == pickled.digest()
    first = 0 if split == "train" else 10
    assert (binary.x[0] * 255).round().flatten().tolist() == X[first].tolist()
    assert binary.y[0] == Y[first]


def test_a_pickle_written_by_python_2_is_read(tmp_path):
    folder = write_pickles(tmp_path)
    expected = load_data("cifar10", root=tmp_path).digest()
    (folder / "test_batch").write_bytes(python_2_pickle(X[10:], Y[10:].tolist()))
    assert load_data("cifar10", root=tmp_path).digest() == expected


def test_an_array_in_fortran_order_is_read_correctly():
    array = np.asfortranarray(np.arange(6, dtype=">i4").reshape(2, 3))
    for protocol in (2, 5):
        read = unpickle_arrays(pickle.dumps({"a": array}, protocol=protocol), "file")["a"]
        assert read.tolist() == array.tolist()


def test_n_reads_only_the_needed_files(tmp_path):
    folder = write_binary(tmp_path)
    (folder / "data_batch_3.bin").unlink()
    assert load_data("cifar10", root=tmp_path, split="train", n=3).y.tolist() == [0, 1, 2]
    with pytest.raises(DataError, match=r"data_batch_3\.bin is missing"):
        load_data("cifar10", root=tmp_path, split="train", n=5)


class Malicious:
    """An object that calls a function when it is unpickled."""

    def __init__(self, call, *arguments):
        self.call = (call, arguments)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("where", ["alone", "as a value", "inside an array"])
def test_a_pickle_that_refers_to_a_function_is_rejected_and_nothing_is_executed(tmp_path, where):
    trap = tmp_path / "trap"
    evil = Malicious(os.mkdir, str(trap))
    content = {
        "alone": evil,
        "as a value": {"data": evil},
        "inside an array": {"data": np.array([evil], dtype=object)},
    }
    folder = write_pickles(tmp_path)
    (folder / "test_batch").write_bytes(pickle.dumps(content[where], protocol=2))
    with pytest.raises(DataError, match=r"unsafe pickle: it refers to|expected numeric arrays"):
        load_data("cifar10", root=tmp_path)
    assert not trap.exists()


@pytest.mark.parametrize(
    "call",
    [eval, exec, getattr, np.load, np.ndarray],
    ids=lambda call: getattr(call, "__name__", "?"),
)
def test_functions_of_builtins_and_numpy_cannot_be_called(call):
    with pytest.raises(DataError):
        unpickle_arrays(pickle.dumps({"data": Malicious(call, "1")}, protocol=4), "file")


def test_only_latin1_text_is_converted_to_bytes():
    with pytest.raises(DataError, match="text encoding 'zlib_codec' is not allowed"):
        unpickle_arrays(b"c_codecs\nencode\n(Vx\nVzlib_codec\ntR.", "file")


def test_an_array_with_a_wrong_declared_size_is_rejected():
    whole = pickle.dumps({"data": np.arange(4, dtype=np.uint8)}, protocol=2)
    assert whole.count(b"K\x04\x85") == 1
    with pytest.raises(DataError, match="declares"):
        unpickle_arrays(whole.replace(b"K\x04\x85", b"K\x05\x85"), "file")


@pytest.mark.parametrize(
    "content", [b"", b"junk", pickle.dumps({"data": 1})[:-4], pickle.dumps([1])]
)
def test_a_damaged_pickle_is_rejected(content):
    with pytest.raises(DataError, match="file"):
        unpickle_arrays(content, "file")


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"labels": [0, 1]}, r"expected `data`.*found keys \['labels'\]"),
        ({"data": X[:1], "labels": [0, 1]}, r"found uint8 \(1, 3072\)"),
        ({"data": X[:2], "labels": [0]}, "a list of 2 integers"),
        ({"data": X[:2], "labels": [0, "cat"]}, "a list of 2 integers"),
    ],
)
def test_a_pickle_with_other_content_is_rejected(tmp_path, batch, message):
    (write_pickles(tmp_path) / "test_batch").write_bytes(pickle.dumps(batch))
    with pytest.raises(DataError, match=message):
        load_data("cifar10", root=tmp_path)


@pytest.mark.parametrize("change", [-1, -3073, 1])
def test_a_binary_file_of_the_wrong_size_is_rejected(tmp_path, change):
    path = write_binary(tmp_path) / "test_batch.bin"
    content = path.read_bytes()
    path.write_bytes(content[:change] if change < 0 else content + b"\0")
    with pytest.raises(DataError, match="should be 6146 bytes"):
        load_data("cifar10", root=tmp_path)


def test_a_label_beyond_the_classes_is_rejected(tmp_path):
    path = write_binary(tmp_path) / "test_batch.bin"
    path.write_bytes(b"\x0a" + path.read_bytes()[1:])
    with pytest.raises(DataError, match=r"labels must be in 0\.\.9"):
        load_data("cifar10", root=tmp_path)
