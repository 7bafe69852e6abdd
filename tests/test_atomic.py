"""Atomic writes: readers see the old file or the new one, and errors leave the old one."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest

from saddlepoint.atomic import sha256_hex, write_atomic


@pytest.mark.parametrize("sync", [False, True])
def test_a_reader_of_the_old_file_keeps_reading_the_old_content(tmp_path, sync):
    path = tmp_path / "page.html"
    write_atomic(path, b"old", sync=sync)
    with path.open("rb") as reader:
        write_atomic(path, b"new", sync=sync)
        assert reader.read() == b"old"
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("sync", [False, True])
def test_no_temporary_file_remains(tmp_path, sync):
    write_atomic(tmp_path / "page.html", b"content", sync=sync)
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_an_error_while_writing_leaves_the_old_file_and_no_temporary_file(tmp_path, monkeypatch):
    path = tmp_path / "page.html"
    write_atomic(path, b"old")

    def disk_full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(path, b"new", sync=True)
    assert path.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_sync_flushes_the_file_and_its_folder_and_the_default_flushes_nothing(
    tmp_path, monkeypatch
):
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    write_atomic(tmp_path / "page.html", b"content")
    assert synced == []
    write_atomic(tmp_path / "page.html", b"content", sync=True)
    assert len(synced) == 2


def test_a_temporary_file_that_another_machine_removed_is_written_again(tmp_path, monkeypatch):
    rename = Path.rename
    removed = []

    def remove_first(self, target):
        if not removed:
            removed.append(self)
            self.unlink()
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", remove_first)
    write_atomic(tmp_path / "file", b"content")
    assert (tmp_path / "file").read_bytes() == b"content"
    assert removed


def test_the_hash_is_hexadecimal_sha256():
    assert sha256_hex(b"content") == hashlib.sha256(b"content").hexdigest()
