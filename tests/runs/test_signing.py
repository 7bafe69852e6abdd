"""Signatures of runs with SSH keys."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from saddlepoint.runs.signing import SigningError, check_signature, sign

pytest.importorskip("cryptography")  # pip install 'saddlepoint[sign]'
SSH = shutil.which("ssh-keygen")


def keys(folder: Path, name: str) -> tuple[Path, Path]:
    """A private and a public key, in the files of OpenSSH."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = folder / name
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        )
    )
    private.chmod(0o600)
    public = folder / f"{name}.pub"
    public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        + b" someone@somewhere\n"
    )
    return private, public


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "manifest.json").write_text('{"files": {}}\n')
    return folder


def test_a_signed_manifest_is_accepted_with_the_key_and_with_no_other(run, tmp_path):
    private, public = keys(tmp_path, "author")
    _, other = keys(tmp_path, "other")
    with pytest.raises(SigningError, match="the run is not signed"):
        check_signature(run, public)
    sign(run, private)
    assert check_signature(run, public).startswith("SHA256:")
    with pytest.raises(SigningError, match="was made with the key SHA256:"):
        check_signature(run, other)
    (run / "manifest.json").write_text('{"files": {"a": 1}}\n')
    with pytest.raises(SigningError, match="is not what was signed"):
        check_signature(run, public)


def test_files_that_are_no_keys_or_signatures_are_explained(run, tmp_path):
    private, public = keys(tmp_path, "author")
    with pytest.raises(SigningError, match="there is no such key"):
        sign(run, tmp_path / "nowhere")
    with pytest.raises(SigningError, match="is not a private key"):
        sign(run, public)
    with pytest.raises(SigningError, match="is not a public Ed25519 key"):
        check_signature(run, private)
    signature = sign(run, private)
    whole = signature.read_bytes()
    for damaged in (b"", b"\xff", whole[:50], whole.replace(b"U1NIU0lH", b"AAAAAAAA")):
        signature.write_bytes(damaged)
        with pytest.raises(SigningError, match="no SSH signature"):
            check_signature(run, public)


@pytest.mark.skipif(SSH is None, reason="needs ssh-keygen")
def test_openssh_accepts_our_signatures_and_we_accept_those_of_openssh(run, tmp_path):
    private, public = keys(tmp_path, "author")
    sign(run, private)
    (tmp_path / "allowed").write_bytes(b"author " + public.read_bytes())
    words = [SSH, "-Y", "verify", "-f", "allowed", "-I", "author", "-n", "saddlepoint"]
    words += ["-s", "run/manifest.json.sig"]
    content = (run / "manifest.json").read_bytes()
    subprocess.run(words, input=content, cwd=tmp_path, check=True, capture_output=True)
    (run / "manifest.json.sig").unlink()
    words = [SSH, "-Y", "sign", "-f", "author", "-n", "saddlepoint", "run/manifest.json"]
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
    assert check_signature(run, public).startswith("SHA256:")
