"""`view` shows one folder to this machine and nothing else to anybody."""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from saddlepoint.reports.serve import found, server


@pytest.fixture
def site(tmp_path):
    folder = tmp_path / "site"
    (folder / "run").mkdir(parents=True)
    (folder / "empty").mkdir()
    (folder / "index.html").write_text("<p>index</p>")
    (folder / "run" / "report.html").write_text("<p>report é</p>", encoding="utf-8")
    (folder / "run" / "audit.json").write_text("{}")
    (folder / "points.safetensors").write_bytes(b"\0\1")
    (folder / ".hidden").write_text("hidden")
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "index.html").write_text("secret")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "door").symlink_to(tmp_path / "outside")
    (folder / "inner.html").symlink_to(folder / "index.html")
    return folder


@pytest.fixture
def ask(site):
    with server(site, 0) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()

        def call(path, method="GET", host=None, headers=()):
            connection = http.client.HTTPConnection("127.0.0.1", listening.server_port, timeout=5)
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for value in [f"127.0.0.1:{listening.server_port}"] if host is None else host:
                connection.putheader("Host", value)
            connection.endheaders()
            answer = connection.getresponse()
            body = answer.read()
            connection.close()
            return answer.status, body, answer

        call.port = listening.server_port
        call.address = listening.server_address[0]
        yield call
        listening.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("path", "kind", "text"),
    [
        ("/", "text/html; charset=utf-8", b"index"),
        ("/index.html?x=1", "text/html; charset=utf-8", b"index"),
        ("/run/", "text/html; charset=utf-8", b"report"),
        ("/run/report.html", "text/html; charset=utf-8", "é".encode()),
        ("/run/audit.json", "application/json", b"{}"),
        ("/points.safetensors", "application/octet-stream", b"\0\1"),
        ("/inner.html", "text/html; charset=utf-8", b"index"),  # a link that stays inside
    ],
)
def test_what_is_in_the_folder_is_shown_as_what_it_is(ask, path, kind, text):
    status, body, answer = ask(path)
    assert (status, answer.headers["Content-Type"]) == (200, kind)
    assert text in body
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt", "/run/../../secret.txt", "/%2e%2e/secret.txt", "/%2e%2e%2fsecret.txt", "/..%2fsecret.txt",
        "/%252e%252e/secret.txt", "/..%5csecret.txt", "/..\\secret.txt", "/link.txt", "/door/", "/door/index.html", "//etc/passwd",
        "/etc/passwd", "/%00", "/index.html%00.txt", "/%ff", "/.hidden", "/./.hidden", "/empty/", "/run", "/nothing.html",
        "/" + "a" * 5000, "http://127.0.0.1/index.html", "*", "index.html",
    ],
)  # fmt: skip
def test_what_is_outside_or_hidden_or_a_folder_is_not_there(ask, path):
    status, body, _ = ask(path)
    assert status == 404
    assert b"secret" not in body
    assert b"hidden" not in body


def test_only_this_machine_under_its_own_name_is_answered(ask):
    port = ask.port
    assert ask.address == "127.0.0.1"
    for host in ("127.0.0.1", f"localhost:{port}", "LOCALHOST"):
        assert ask("/", host=[host])[0] == 200, host
    strangers = (
        [], [""], ["evil.example"], [f"evil.example:{port}"], ["127.0.0.1.evil.example"], ["localhost.evil.example"],
        [f"127.0.0.1:{port + 1}"], ["0.0.0.0"], ["127.0.0.1@evil.example"], ["127.0.0.1", "evil.example"],
    )  # fmt: skip
    for host in strangers:
        status, body, _ = ask("/", host=host)
        assert status == 403, host
        assert b"index" not in body


def test_nothing_but_get_and_head_is_answered(ask):
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        status, _, answer = ask("/", method)
        assert (status, answer.headers["Allow"]) == (405, "GET, HEAD")
    status, body, answer = ask("/", "HEAD")
    assert (status, body, answer.headers["Content-Length"]) == (200, b"", "12")
    assert ask("/none", "HEAD")[:2] == (404, b"")


def test_a_folder_without_pages_or_a_port_that_is_taken_is_told(tmp_path, site):
    with pytest.raises(FileNotFoundError, match="no folder"):
        server(tmp_path / "none", 0)
    with pytest.raises(
        FileNotFoundError, match=r"holds no index\.html, report\.html or live\.html"
    ):
        server(site / "empty", 0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ValueError, match="--port"):
            server(site, taken.getsockname()[1])


def test_a_link_to_the_folder_itself_is_followed(tmp_path, site):
    (tmp_path / "alias").symlink_to(site)
    assert found((tmp_path / "alias").resolve(), "/index.html") == (site / "index.html").resolve()


def test_ctrl_c_ends_it_without_noise(site):
    code = (
        "import typer; from saddlepoint.cli import view; app = typer.Typer(); app.callback()(lambda: None); view.add(app);"
        f"app(['view', {str(site)!r}, '--port', '0'])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    line = process.stdout.readline()
    assert "http://127.0.0.1:" in line
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=10)
    assert (out, err, process.returncode) == ("Ended.\n", "", 0)
