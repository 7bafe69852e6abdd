"""Downloads from a local server: the result is complete and verified, or nothing is kept."""

from __future__ import annotations

import hashlib
import io
import logging
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from tests.data.data_formats import idx_bytes, random_bytes

from saddlepoint.data import PULLABLE, SOURCES, DataError, load_data, pull
from saddlepoint.data.remote import Remote

IMAGES = "t10k-images-idx3-ubyte"
LABELS = "t10k-labels-idx1-ubyte"


class Server(ThreadingHTTPServer):
    """Serves `files`, truncated after `cut` bytes if set, and records the requested names."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.cut: int | None = None
        self.requested: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        name = self.path.lstrip("/")
        self.server.requested.append(name)
        if name not in self.server.files:
            self.send_error(404)
            return
        content = self.server.files[name]
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: self.server.cut])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def offer(server, monkeypatch):
    """A function that serves files and registers them as the files of a dataset."""

    def offer(name: str, **files: bytes) -> None:
        server.files = dict(files)
        remotes = tuple(
            Remote("http://nowhere.invalid", file, f"sha256:{hashlib.sha256(content).hexdigest()}")
            for file, content in files.items()
        )
        monkeypatch.setitem(PULLABLE, name, remotes)

    return offer


def mnist() -> dict[str, bytes]:
    return {
        IMAGES: idx_bytes(random_bytes(2, 28, 28)),
        LABELS: idx_bytes(np.array([7, 2], np.uint8)),
    }


def tar(**files: bytes) -> bytes:
    return tar_of([(tarfile.TarInfo(name), content) for name, content in files.items()])


def tar_of(members: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for info, content in members:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def zipped(**files: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("progress", [True, False])
def test_pulled_data_can_be_loaded(server, offer, tmp_path, progress):
    offer("mnist", **mnist())
    assert (
        pull("mnist", root=tmp_path, base_url=server.url + "/", progress=progress)
        == tmp_path / "mnist"
    )
    assert load_data("mnist", root=tmp_path).y.tolist() == [7, 2]
    assert files_below(tmp_path) == [f"mnist/{IMAGES}", f"mnist/{LABELS}"]


def test_the_progress_display_shows_the_name_of_each_file(server, offer, tmp_path, capsys):
    offer("mnist", **mnist())
    pull("mnist", root=tmp_path, base_url=server.url)
    assert IMAGES in capsys.readouterr().out


def test_without_progress_nothing_is_printed(server, offer, tmp_path, capfd):
    offer("mnist", **mnist())
    pull("mnist", root=tmp_path, base_url=server.url, progress=False)
    assert capfd.readouterr() == ("", "")


def test_the_root_is_resolved_as_in_load_data(server, offer, tmp_path, monkeypatch):
    monkeypatch.setenv("SADDLEPOINT_DATA", str(tmp_path / "env"))
    offer("mnist", **mnist())
    pull("mnist", base_url=server.url, progress=False)
    assert len(load_data("mnist")) == 2


def test_a_verified_file_is_not_requested_again(server, offer, tmp_path):
    offer("mnist", **mnist())
    for _ in range(2):
        pull("mnist", root=tmp_path, base_url=server.url, progress=False)
    assert server.requested == [IMAGES, LABELS]


def test_a_partial_file_of_an_earlier_download_is_replaced(server, offer, tmp_path):
    files = mnist()
    offer("mnist", **files)
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / IMAGES).write_bytes(files[IMAGES][:100])
    pull("mnist", root=tmp_path, base_url=server.url, progress=False)
    assert (tmp_path / "mnist" / IMAGES).read_bytes() == files[IMAGES]


@pytest.mark.parametrize("wrong", ["other content", "truncated", "page", "not found"])
def test_a_download_that_is_not_the_file_is_rejected_and_not_kept(server, offer, tmp_path, wrong):
    offer("mnist", **mnist())
    match wrong:
        case "other content":
            server.files[IMAGES] = idx_bytes(random_bytes(3, 28, 28))
        case "truncated":
            server.cut = 100
        case "page":
            server.files[IMAGES] = b"<!DOCTYPE html><title>Please log in</title>"
        case "not found":
            del server.files[IMAGES]
    messages = {
        "other content": "is not the expected file: its checksum should be sha256:",
        "truncated": f"Could not download {server.url}/{IMAGES}",
        "page": f"{server.url}/{IMAGES}: expected {IMAGES}, found a web page",
        "not found": "404",
    }
    with pytest.raises(DataError, match=messages[wrong]):
        pull("mnist", root=tmp_path, base_url=server.url, progress=False)
    assert files_below(tmp_path) == []


def test_a_failed_replacement_keeps_the_existing_file(server, offer, tmp_path):
    offer("mnist", **mnist())
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / IMAGES).write_bytes(b"the user's own")
    server.files = {}
    with pytest.raises(DataError, match="404"):
        pull("mnist", root=tmp_path, base_url=server.url, progress=False)
    assert (tmp_path / "mnist" / IMAGES).read_bytes() == b"the user's own"


def test_a_network_error_is_reported(offer, tmp_path):
    offer("mnist", **mnist())
    with Server() as closed:
        url = closed.url
    with pytest.raises(DataError, match=r"Could not download .* Check the network"):
        pull("mnist", root=tmp_path, base_url=url, progress=False)
    assert files_below(tmp_path) == []


def test_an_archive_is_unpacked_once_and_deleted(server, offer, tmp_path, monkeypatch):
    monkeypatch.setattr("saddlepoint.data.cifar.ROWS_PER_FILE", 1)
    content = {"cifar-10-batches-bin/test_batch.bin": b"\3" + bytes(3072)}
    offer("cifar10", **{"cifar-10-binary.tar.gz": tar(**content)})
    for _ in range(2):
        pull("cifar10", root=tmp_path, base_url=server.url, progress=False)
    assert load_data("cifar10", root=tmp_path).y.tolist() == [3]
    assert server.requested == ["cifar-10-binary.tar.gz"]
    assert files_below(tmp_path) == [
        "cifar10/.cifar-10-binary.tar.gz.files",
        "cifar10/cifar-10-batches-bin/test_batch.bin",
    ]


def test_a_partially_unpacked_folder_is_unpacked_again(server, offer, tmp_path):
    offer(
        "cifar10",
        **{"cifar-10-binary.tar.gz": tar(**{"cifar-10-batches-bin/test_batch.bin": b"whole"})},
    )
    half = tmp_path / "cifar10" / "cifar-10-batches-bin" / "test_batch.bin"
    half.parent.mkdir(parents=True)
    half.write_bytes(b"ha")
    pull("cifar10", root=tmp_path, base_url=server.url, progress=False)
    assert half.read_bytes() == b"whole"


@pytest.mark.parametrize("damage", ["deleted", "truncated"])
def test_a_lost_or_damaged_unpacked_file_is_pulled_again(server, offer, tmp_path, damage):
    offer(
        "cifar10",
        **{"cifar-10-binary.tar.gz": tar(**{"cifar-10-batches-bin/test_batch.bin": b"whole"})},
    )
    pull("cifar10", root=tmp_path, base_url=server.url, progress=False)
    file = tmp_path / "cifar10" / "cifar-10-batches-bin" / "test_batch.bin"
    if damage == "deleted":
        file.unlink()
    else:
        file.write_bytes(b"ha")
    pull("cifar10", root=tmp_path, base_url=server.url, progress=False)
    assert file.read_bytes() == b"whole"


def test_archives_that_share_a_folder_are_merged(server, offer, tmp_path):
    offer(
        "gtsrb",
        **{
            "a.zip": zipped(**{"GTSRB/Training/a": b"a"}),
            "b.zip": zipped(**{"GTSRB/Final_Test/b": b"b"}),
        },
    )
    pull("gtsrb", root=tmp_path, base_url=server.url, progress=False)
    assert files_below(tmp_path / "gtsrb" / "GTSRB") == ["Final_Test/b", "Training/a"]


def test_a_tar_with_a_path_outside_is_rejected(server, offer, tmp_path):
    offer("cifar10", **{"cifar-10-binary.tar.gz": tar(**{"../../outside": b"x"})})
    with pytest.raises(DataError, match="Could not unpack"):
        pull("cifar10", root=tmp_path / "root", base_url=server.url, progress=False)
    assert files_below(tmp_path) == ["root/cifar10/cifar-10-binary.tar.gz"]


def test_a_tar_with_a_link_to_outside_is_rejected(server, offer, tmp_path):
    link = tarfile.TarInfo("link")
    link.type = tarfile.SYMTYPE
    link.linkname = "/etc"
    offer("cifar10", **{"cifar-10-binary.tar.gz": tar_of([(link, b"")])})
    with pytest.raises(DataError, match="Could not unpack"):
        pull("cifar10", root=tmp_path, base_url=server.url, progress=False)
    assert files_below(tmp_path) == ["cifar10/cifar-10-binary.tar.gz"]
    assert not (tmp_path / "cifar10" / "link").is_symlink()


def test_a_zip_with_a_path_outside_is_unpacked_inside(server, offer, tmp_path):
    offer("gtsrb", **{"a.zip": zipped(**{"../../outside": b"x"})})
    pull("gtsrb", root=tmp_path / "root", base_url=server.url, progress=False)
    assert not (tmp_path / "outside").exists()
    assert not (tmp_path / "root" / "outside").exists()


@pytest.mark.parametrize(("file", "name"), [("a.zip", "gtsrb"), ("a.tar.gz", "cifar10")])
def test_an_archive_that_cannot_be_unpacked_is_kept_and_not_downloaded_again(
    server, offer, tmp_path, file, name
):
    offer(name, **{file: b"not an archive"})
    with pytest.raises(DataError, match="Could not unpack"):
        pull(name, root=tmp_path, base_url=server.url, progress=False)
    assert files_below(tmp_path) == [f"{name}/{file}"]
    with pytest.raises(DataError, match="Could not unpack"):
        pull(name, root=tmp_path, base_url=server.url, progress=False)
    assert server.requested == [file]


def test_the_error_names_a_folder_that_cannot_be_created(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="Cannot write to"):
        pull("mnist", root=tmp_path / "file", progress=False)


def test_an_unknown_name_suggests_the_nearest(tmp_path):
    with pytest.raises(DataError, match="Did you mean 'mnist'"):
        pull("mnits", root=tmp_path)


@pytest.mark.parametrize("name", sorted(set(SOURCES) - set(PULLABLE)))
def test_pulling_data_without_a_server_is_an_error(tmp_path, name):
    with pytest.raises(DataError, match="nothing to pull"):
        pull(name, root=tmp_path)


def test_the_log_level_of_pooch_is_restored(server, offer, tmp_path):
    import pooch

    before = pooch.get_logger().level
    offer("mnist", **mnist())
    pull("mnist", root=tmp_path, base_url=server.url, progress=False)
    assert pooch.get_logger().level == before != logging.WARNING


def test_every_published_file_has_a_checksum_and_a_loader():
    assert set(PULLABLE) < set(SOURCES)
    for remotes in PULLABLE.values():
        for remote in remotes:
            algorithm, _, digits = remote.checksum.partition(":")
            assert len(digits) == {"md5": 32, "sha256": 64}[algorithm]
            assert int(digits, 16)
