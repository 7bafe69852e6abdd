"""A web server for one folder of pages: read-only, on 127.0.0.1 only."""

from __future__ import annotations

import os
import re
import shutil
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote

from saddlepoint.reports.document import content_policy
from saddlepoint.reports.sorting import SORT_SCRIPT

ADDRESS = "127.0.0.1"
_HOSTS = (ADDRESS, "localhost")
# The page shown for a folder is the first of these that exists. Folders are never listed.
_INDEX_PAGES = ("index.html", "report.html", "live.html")
_TEXT = "text/plain; charset=utf-8"
_CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".json": "application/json",
    ".jsonl": _TEXT,
    ".csv": "text/csv; charset=utf-8",
    ".toml": _TEXT,
    ".txt": _TEXT,
    ".md": _TEXT,
    ".tex": _TEXT,
    ".png": "image/png",
    ".css": "text/css; charset=utf-8",
}
MOST_CONNECTIONS = 32
_TIMEOUT = 10  # seconds without data after which a connection is closed


def server(folder: Path, port: int) -> ThreadingHTTPServer:
    """Return a server for a folder; call `serve_forever` on it.

    Args:
        folder: The folder to serve.
        port: The port to listen on. 0 chooses a free port.

    Raises:
        FileNotFoundError: The folder does not exist or contains no page.
        ValueError: The port is not available.
    """
    if not folder.is_dir():
        raise FileNotFoundError(
            f"the folder {folder} does not exist. Pass a folder that `saddlepoint report` or "
            "`--out` wrote."
        )
    if not any((folder / name).is_file() for name in _INDEX_PAGES):
        raise FileNotFoundError(
            f"{folder} contains no {', '.join(_INDEX_PAGES[:-1])} or {_INDEX_PAGES[-1]}. "
            "Write one with `saddlepoint report`."
        )
    root = folder.resolve()

    class Handler(_Handler):
        folder = root

    try:
        return _Server((ADDRESS, port), Handler)
    except OSError as error:
        raise ValueError(
            f"cannot listen on port {port} ({error.strerror}). Choose another port with --port, "
            "or 0 for any free port."
        ) from None


def requested_file(folder: Path, target: str) -> Path | None:
    """Return the file of a request.

    Args:
        folder: The folder that is served, with symbolic links resolved.
        target: The request target, for example `/run/report.html?x=1`.

    Returns:
        The file, or None if there is no such file in the folder. Hidden files, and links that
        lead out of the folder, are treated as missing.

    Raises:
        ValueError: The target is not valid UTF-8.
    """
    path = unquote(re.split("[?#]", target)[0], errors="strict") if target.startswith("/") else ""
    parts = path.split("/")[1:]
    if not path or "\\" in path or "\0" in path or any(part.startswith(".") for part in parts):
        return None
    place = folder.joinpath(*(part for part in parts if part))
    candidates = [place / name for name in _INDEX_PAGES] if path.endswith("/") else [place]
    files = (candidate.resolve() for candidate in candidates if candidate.is_file())
    return next((file for file in files if file.is_relative_to(folder)), None)


class _Server(ThreadingHTTPServer):
    """A thread per connection, but only a few at a time: others are closed at once."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore browsers that close a connection before they have read the page."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    folder: Path
    timeout = _TIMEOUT
    server_version = "saddlepoint"
    sys_version = ""

    def do_GET(self) -> None:
        self._respond(body=True)

    def do_HEAD(self) -> None:
        self._respond(body=False)

    def _reject_method(self) -> None:
        allow = {"Allow": "GET, HEAD"}
        self._send_text(HTTPStatus.METHOD_NOT_ALLOWED, "Only GET and HEAD are allowed.", allow)

    do_POST = _reject_method  # noqa: N815
    do_PUT = _reject_method  # noqa: N815
    do_PATCH = _reject_method  # noqa: N815
    do_DELETE = _reject_method  # noqa: N815
    do_OPTIONS = _reject_method  # noqa: N815
    do_TRACE = _reject_method  # noqa: N815
    do_CONNECT = _reject_method  # noqa: N815

    def _respond(self, *, body: bool) -> None:
        if not self._host_is_local():
            hosts = " and ".join(_HOSTS)
            self._send_text(HTTPStatus.FORBIDDEN, f"This server accepts requests for {hosts} only.")
        elif (content := self._open()) is None:
            self._send_text(HTTPStatus.NOT_FOUND, "There is no such page.")
        else:
            with content:
                self._send_file(content, body=body)

    def _send_file(self, content: BinaryIO, *, body: bool) -> None:
        self.send_response(HTTPStatus.OK)
        suffix = Path(content.name).suffix.lower()
        content_type = _CONTENT_TYPES.get(suffix, "application/octet-stream")
        self._send_headers(content_type, os.fstat(content.fileno()).st_size)
        if body:
            shutil.copyfileobj(content, self.wfile)

    def _open(self) -> BinaryIO | None:
        try:
            file = requested_file(self.folder, self.path)
            return file.open("rb") if file else None
        except (ValueError, OSError):  # not UTF-8, too long, or not readable
            return None

    def _host_is_local(self) -> bool:
        """Return whether the Host header names this machine.

        Another site could let its own name point to 127.0.0.1 and then read our pages (DNS
        rebinding). Such requests have the name of that site in their Host header.
        """
        hosts = self.headers.get_all("Host") or []
        return len(hosts) == 1 and hosts[0].strip().lower() in {
            *_HOSTS,
            *(f"{host}:{self.server.server_port}" for host in _HOSTS),
        }

    def _send_text(
        self, status: HTTPStatus, text: str, headers: dict[str, str] | None = None
    ) -> None:
        content = f"{text}\n".encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self._send_headers(_TEXT, len(content))
        if self.command != "HEAD":
            self.wfile.write(content)

    def _send_headers(self, content_type: str, length: int) -> None:
        headers = {
            "Content-Type": content_type,
            "Content-Length": str(length),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "X-Frame-Options": "DENY",
            "Content-Security-Policy": f"{content_policy(SORT_SCRIPT)}; frame-ancestors 'none'",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing: the requests are those of the user's own browser."""
