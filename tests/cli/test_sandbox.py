"""`--sandbox`: no network, a read-only file system, and no way back."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest
from tests.cli.commands import START

from saddlepoint.cli import sandbox


def namespaces_allowed() -> bool:
    pid = os.fork()
    if pid == 0:
        try:
            sandbox.enter_sandbox([])
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0


needs_namespaces = pytest.mark.skipif(
    not (sys.platform.startswith("linux") and namespaces_allowed()),
    reason="this platform does not allow user namespaces, or is not Linux",
)
PROBE = """
import json, os, socket, subprocess, sys
from pathlib import Path
from saddlepoint.cli.sandbox import enter_sandbox, in_sandbox

def outcome(action):
    try:
        action()
    except OSError as error:
        return error.strerror
    return "done"

os.chdir("out")
before = in_sandbox()
enter_sandbox([Path("."), Path("../summary.md")])
remount = ["mount", "-o", "remount,bind,rw", "/"]
print(json.dumps({
    "inside": [before, in_sandbox()],
    "result": outcome(lambda: Path("cell").write_text("x")),
    "summary": outcome(lambda: Path("../summary.md").write_text("x")),
    "temporary": outcome(lambda: Path(os.environ["TMPDIR"], "t").write_text("x")),
    "null": outcome(lambda: Path("/dev/null").write_text("x")),
    "beside": outcome(lambda: Path("../other").write_text("x")),
    "home": outcome(lambda: Path.home().joinpath("other").write_text("x")),
    "network": outcome(lambda: socket.create_connection(("192.0.2.1", 80), 2)),
    "loopback": outcome(lambda: socket.create_connection(("127.0.0.1", PORT), 2)),
    "remount": subprocess.run(remount, capture_output=True).returncode,
    "capabilities": [l.split()[1] for l in Path("/proc/self/status").read_text().splitlines()
                     if l.startswith(("CapPrm", "CapEff", "CapBnd"))],
}))
"""


@needs_namespaces
def test_only_the_results_can_be_written_and_there_is_no_network(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "summary.md").touch()
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = PROBE.replace("PORT", str(server.getsockname()[1]))
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
        )
    found = json.loads(done.stdout)
    read_only = "Read-only file system"
    unreachable = "Network is unreachable"
    assert found["inside"] == [False, True]
    assert {found[name] for name in ("result", "summary", "temporary", "null")} == {"done"}
    assert found["beside"] == found["home"] == read_only
    assert found["network"] == found["loopback"] == unreachable
    assert found["remount"] != 0
    assert {int(text, 16) for text in found["capabilities"]} == {0}
    assert (tmp_path / "out" / "cell").read_text() == "x"
    assert not (tmp_path / "other").exists()


TARGET = """
import os, socket
from pathlib import Path
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        for action in (lambda: Path("stolen").write_text("x"),
                       lambda: socket.create_connection(("192.0.2.1", 80), 2)):
            try:
                action()
            except OSError as error:
                print("refused:", error.strerror, flush=True)

    def forward(self, x):
        return self.net(x)

def make():
    return Net().eval()
"""


@pytest.mark.slow
@needs_namespaces
def test_an_audit_in_a_sandbox_writes_its_results_and_the_target_nothing_else(tmp_path):
    (tmp_path / "net.py").write_text(TARGET)
    words = ["audit", "net.py:make", "--n", "8", "--eps", "0.05", "--attacks", "fgsm", "--sandbox"]
    words += ["--allow-unusual", "--json", "--out", "run", "--summary", "summary.md"]
    # With several threads, which importing numpy starts, a process cannot enter a sandbox.
    environment = {name: text for name, text in os.environ.items() if "NUM_THREADS" not in name}
    done = subprocess.run(
        [sys.executable, "-c", START, *words],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["n"] == 8
    assert "refused: Read-only file system" in done.stderr
    assert "refused: Network is unreachable" in done.stderr
    assert not (tmp_path / "stolen").exists()
    assert (tmp_path / "run" / "report.html").is_file()
    assert (tmp_path / "summary.md").read_text()


def test_a_platform_without_namespaces_is_an_error_and_not_a_weaker_sandbox(monkeypatch):
    def refuse(writable):
        raise PermissionError(1, "new namespaces are not permitted")

    monkeypatch.setattr(sandbox, "_isolate", refuse)
    with pytest.raises(sandbox.SandboxError, match=r"not available here: .* are not permitted"):
        sandbox.enter_sandbox([])
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(sandbox.SandboxError, match="it needs Linux, and this is darwin"):
        sandbox.enter_sandbox([])
