"""A folder of pages on 127.0.0.1: read only, nothing outside it, for nobody else."""

from __future__ import annotations

import os
import re
import shutil
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote

ADDRESS = "127.0.0.1"
_HOSTS = (ADDRESS, "localhost")
_FRONT = (
    "index.html",
    "report.html",
    "live.html",
)  # what a folder shows of itself; nothing is listed
_TYPES = {
    ".html": "text/html; charset=utf-8", ".json": "application/json", ".jsonl": "text/plain; charset=utf-8",
    ".csv": "text/csv; charset=utf-8", ".toml": "text/plain; charset=utf-8", ".txt": "text/plain; charset=utf-8",
    ".md": "text/plain; charset=utf-8", ".tex": "text/plain; charset=utf-8", ".png": "image/png", ".css": "text/css; charset=utf-8",
}  # fmt: skip
_SECONDS = 30  # after which a silent connection is closed


def server(folder: Path, port: int) -> ThreadingHTTPServer:
    """A server that is ready for `serve_forever`; port 0 takes any that is free."""
    if not folder.is_dir():
        raise FileNotFoundError(
            f"there is no folder {folder}. Give one that `saddlepoint report` or `--out` wrote."
        )
    if not any((folder / name).is_file() for name in _FRONT):
        raise FileNotFoundError(
            f"{folder} holds no {', '.join(_FRONT[:-1])} or {_FRONT[-1]}. Write one with `saddlepoint report`."
        )
    root = folder.resolve()

    class Handler(_Handler):
        folder = root

    try:
        return _Server((ADDRESS, port), Handler)
    except OSError as error:
        raise ValueError(
            f"cannot listen on port {port} ({error.strerror}). Choose another with --port, or 0 for any."
        ) from None


def found(folder: Path, target: str) -> Path | None:
    """The file that a request asks for. Outside the folder, which is resolved, there is nothing, also not through a link."""
    path = unquote(re.split("[?#]", target)[0], errors="strict") if target.startswith("/") else ""
    parts = path.split("/")[1:]
    if not path or "\\" in path or "\0" in path or any(part.startswith(".") for part in parts):
        return None
    asked = folder.joinpath(*(part for part in parts if part))
    candidates = [asked / name for name in _FRONT] if path.endswith("/") else [asked]
    whole = (candidate.resolve() for candidate in candidates if candidate.is_file())
    return next((file for file in whole if file.is_relative_to(folder)), None)


class _Server(ThreadingHTTPServer):
    daemon_threads = True


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    folder: Path
    timeout = _SECONDS
    server_version = "saddlepoint"
    sys_version = ""

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _refuse(self) -> None:
        self._say(HTTPStatus.METHOD_NOT_ALLOWED, "Only GET and HEAD.", {"Allow": "GET, HEAD"})

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = _refuse  # noqa: N815

    def _answer(self, *, body: bool) -> None:
        if not self._local():
            self._say(HTTPStatus.FORBIDDEN, f"This server answers to {' and '.join(_HOSTS)} only.")
        elif (content := self._open()) is None:
            self._say(HTTPStatus.NOT_FOUND, "There is no such page.")
        else:
            with content:
                self.send_response(HTTPStatus.OK)
                kind = _TYPES.get(Path(content.name).suffix.lower(), "application/octet-stream")
                self._heads(kind, os.fstat(content.fileno()).st_size)
                if body:
                    shutil.copyfileobj(content, self.wfile)

    def _open(self) -> BinaryIO | None:
        try:
            file = found(self.folder, self.path)
            return file.open("rb") if file else None
        except (
            ValueError,
            OSError,
        ):  # not text, too long, not readable: to whoever asks it is not there
            return None

    def _local(self) -> bool:
        """A name that somebody else points at this machine is not ours, or any page could read this one (DNS rebinding)."""
        hosts = self.headers.get_all("Host") or []
        return len(hosts) == 1 and hosts[0].strip().lower() in {
            *_HOSTS,
            *(f"{host}:{self.server.server_port}" for host in _HOSTS),
        }

    def _say(self, status: HTTPStatus, text: str, more: dict[str, str] | None = None) -> None:
        content = f"{text}\n".encode()
        self.send_response(status)
        for name, value in (more or {}).items():
            self.send_header(name, value)
        self._heads("text/plain; charset=utf-8", len(content))
        if self.command != "HEAD":
            self.wfile.write(content)

    def _heads(self, kind: str, length: int) -> None:
        heads = {
            "Content-Type": kind, "Content-Length": str(length), "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer", "Cross-Origin-Resource-Policy": "same-origin", "X-Frame-Options": "DENY",
        }  # fmt: skip
        for name, value in heads.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nobody needs to read what their own browser asked for."""
