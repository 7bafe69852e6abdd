"""The server shows one folder to this machine, and nothing else."""

from __future__ import annotations

import http.client
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import pytest

from saddlepoint.reports.serve import MOST_CONNECTIONS, requested_file, server


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
def request_page(site):
    """Send a request to a running server; returns status, body and response."""
    with server(site, 0) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()

        def send(path, method="GET", host=None):
            connection = http.client.HTTPConnection("127.0.0.1", running.server_port, timeout=5)
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for value in [f"127.0.0.1:{running.server_port}"] if host is None else host:
                connection.putheader("Host", value)
            connection.endheaders()
            response = connection.getresponse()
            body = response.read()
            connection.close()
            return response.status, body, response

        send.port = running.server_port
        send.address = running.server_address[0]
        yield send
        running.shutdown()
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
        ("/inner.html", "text/html; charset=utf-8", b"index"),  # a link inside the folder
    ],
)
def test_files_of_the_folder_are_sent_with_their_content_type(request_page, path, kind, text):
    status, body, response = request_page(path)
    assert (status, response.headers["Content-Type"]) == (200, kind)
    assert text in body
    assert response.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt",
        "/run/../../secret.txt",
        "/%2e%2e/secret.txt",
        "/%2e%2e%2fsecret.txt",
        "/..%2fsecret.txt",
        "/%252e%252e/secret.txt",
        "/..%5csecret.txt",
        "/..\\secret.txt",
        "/link.txt",
        "/door/",
        "/door/index.html",
        "//etc/passwd",
        "/etc/passwd",
        "/%00",
        "/index.html%00.txt",
        "/%ff",
        "/.hidden",
        "/./.hidden",
        "/empty/",
        "/run",
        "/nothing.html",
        "/" + "a" * 5000,
        "http://127.0.0.1/index.html",
        "*",
        "index.html",
    ],
)
def test_paths_outside_the_folder_hidden_files_and_folders_are_not_found(request_page, path):
    status, body, _ = request_page(path)
    assert status == 404
    assert b"secret" not in body
    assert b"hidden" not in body


def test_only_requests_for_a_local_host_name_are_served(request_page):
    port = request_page.port
    assert request_page.address == "127.0.0.1"
    for host in ("127.0.0.1", f"localhost:{port}", "LOCALHOST"):
        assert request_page("/", host=[host])[0] == 200, host
    foreign = (
        [],
        [""],
        ["evil.example"],
        [f"evil.example:{port}"],
        ["127.0.0.1.evil.example"],
        ["localhost.evil.example"],
        [f"127.0.0.1:{port + 1}"],
        ["0.0.0.0"],
        ["127.0.0.1@evil.example"],
        ["127.0.0.1", "evil.example"],
    )
    for host in foreign:
        status, body, _ = request_page("/", host=host)
        assert status == 403, host
        assert b"index" not in body


def test_only_get_and_head_are_allowed(request_page):
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        status, _, response = request_page("/", method)
        assert (status, response.headers["Allow"]) == (405, "GET, HEAD")
    status, body, response = request_page("/", "HEAD")
    assert (status, body, response.headers["Content-Length"]) == (200, b"", "12")
    assert request_page("/none", "HEAD")[:2] == (404, b"")


def test_a_missing_folder_a_folder_without_pages_and_a_port_in_use_are_errors(tmp_path, site):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        server(tmp_path / "none", 0)
    with pytest.raises(
        FileNotFoundError, match=r"contains no index\.html, report\.html or live\.html"
    ):
        server(site / "empty", 0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ValueError, match="--port"):
            server(site, taken.getsockname()[1])


def test_a_link_to_the_folder_itself_is_followed(tmp_path, site):
    (tmp_path / "alias").symlink_to(site)
    folder = (tmp_path / "alias").resolve()
    assert requested_file(folder, "/index.html") == (site / "index.html").resolve()


def test_ctrl_c_ends_the_server_without_a_traceback(site):
    code = (
        "import typer; from saddlepoint.cli import view; app = typer.Typer();"
        "app.callback()(lambda: None); view.add(app);"
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


def test_the_policy_of_the_server_allows_no_network_and_one_script(request_page):
    _, _, response = request_page("/")
    policy = response.getheader("Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert "script-src 'sha256-" in policy
    assert "frame-ancestors 'none'" in policy


def test_idle_connections_do_not_take_more_than_a_few_threads(request_page):
    before = threading.active_count()
    idle = []
    for _ in range(2 * MOST_CONNECTIONS):
        idle.append(socket.create_connection((request_page.address, request_page.port)))
        time.sleep(0.02)  # the queue of the server is short, and a repeated call takes a second
    assert threading.active_count() - before <= MOST_CONNECTIONS
    for connection in idle:
        connection.close()


def test_a_browser_that_closes_a_connection_early_leaves_no_traceback(request_page, site, capfd):
    (site / "large.html").write_bytes(b"x" * 10**7)
    connection = socket.create_connection((request_page.address, request_page.port))
    host = f"127.0.0.1:{request_page.port}"
    connection.sendall(f"GET /large.html HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    time.sleep(0.5)
    assert "Traceback" not in capfd.readouterr().err
