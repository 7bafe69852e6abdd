"""Signatures of runs with SSH keys: `manifest.json.sig` beside `manifest.json`.

The signature has the format of `ssh-keygen -Y sign -n saddlepoint` (PROTOCOL.sshsig of OpenSSH),
so that OpenSSH can check it as well. Ed25519 keys are supported. `cryptography` is imported only
here.
"""

from __future__ import annotations

import base64
import binascii
import getpass
import hashlib
import struct
from pathlib import Path
from typing import Any

from saddlepoint.reading import ReadError, read_bytes
from saddlepoint.runs.own_files import MANIFEST, SIGNATURE
from saddlepoint.runs.store import Store

NAMESPACE = b"saddlepoint"
_MAGIC = b"SSHSIG"
_HASH = b"sha512"
_KIND = b"ssh-ed25519"
_BEGIN = "-----BEGIN SSH SIGNATURE-----"
_END = "-----END SSH SIGNATURE-----"
_LARGEST = 2**20  # bytes of a key or a signature


class SigningError(ValueError):
    """A key cannot be used, or a signature is missing or wrong."""


def sign(folder: Path, key: Path) -> Path:
    """Sign the manifest of a run and return the path of the signature.

    Args:
        folder: The folder of the run.
        key: A private Ed25519 key of SSH. Its passphrase is read from the terminal.

    Raises:
        SigningError: There is no manifest, or the key cannot be used.
    """
    content = _manifest(folder)
    private = _private_key(key)
    public = _public_blob(private.public_key())
    signature = _string(_KIND) + _string(private.sign(_signed_data(content)))
    blob = _MAGIC + struct.pack(">I", 1) + _string(public) + _string(NAMESPACE)
    blob += _string(b"") + _string(_HASH) + _string(signature)
    text = base64.b64encode(blob).decode()
    lines = [text[start : start + 70] for start in range(0, len(text), 70)]
    Store(folder).write_file(SIGNATURE, "\n".join([_BEGIN, *lines, _END, ""]).encode())
    return folder / SIGNATURE


def check_signature(folder: Path, key: Path) -> str:
    """Check the signature of a run, and return the fingerprint of its key.

    Args:
        folder: The folder of the run.
        key: The public key, a file such as id_ed25519.pub.

    Raises:
        SigningError: There is no signature, it was made with another key, or the manifest was
            changed after it had been signed.
    """
    ed25519, invalid = _ed25519()
    content = _manifest(folder)
    public = _read_public_key(key)
    signer, signature = _parse(_read(folder / SIGNATURE, "the run is not signed"))
    if signer != public:
        raise SigningError(
            f"{SIGNATURE} was made with the key {_fingerprint(signer)}, not with "
            f"{_fingerprint(public)} of {key}."
        )
    try:
        ed25519.Ed25519PublicKey.from_public_bytes(_fields(public)[1]).verify(
            signature, _signed_data(content)
        )
    except (invalid, ValueError):
        raise SigningError(
            f"{MANIFEST} is not what was signed with the key {_fingerprint(public)}."
        ) from None
    return _fingerprint(public)


def _ed25519() -> tuple[Any, type[Exception]]:
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise SigningError(
            "signatures need the package cryptography: pip install 'saddlepoint[sign]'."
        ) from None
    return ed25519, InvalidSignature


def _private_key(path: Path) -> Any:
    ed25519, _ = _ed25519()
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    content = _read(path, "there is no such key")
    try:
        try:
            key = load_ssh_private_key(content, None)
        except ValueError as error:
            if "password" not in str(error).lower():
                raise
            phrase = getpass.getpass(f"Passphrase of {path}: ")
            key = load_ssh_private_key(content, phrase.encode())
    except Exception as error:  # the library raises errors of many kinds for a damaged key
        raise SigningError(f"{path} is not a private key of SSH ({error}).") from None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise SigningError(
            f"{path} is not an Ed25519 key. Make one: ssh-keygen -t ed25519 -f {path.name}-ed25519."
        )
    return key


def _public_blob(key: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    raw: bytes = key.public_bytes(Encoding.Raw, PublicFormat.Raw)
    return _string(_KIND) + _string(raw)


def _read_public_key(path: Path) -> bytes:
    words = _read(path, "there is no such key").split()
    try:
        blob = base64.b64decode(words[1], validate=True)
        parts = _fields(blob)
    except (IndexError, binascii.Error, struct.error):
        parts = []
    if words[:1] != [_KIND] or len(parts) != 2 or parts[0] != _KIND or len(parts[1]) != 32:
        raise SigningError(
            f"{path} is not a public Ed25519 key: expected one line, 'ssh-ed25519 AAAA…'."
        )
    return blob


def _parse(content: bytes) -> tuple[bytes, bytes]:
    """The public key and the raw signature in a signature file."""
    try:
        lines = content.decode("ascii").split()
        text = "".join(lines[3:-3])  # without the words BEGIN SSH SIGNATURE and END SSH SIGNATURE
        blob = base64.b64decode(text, validate=True)
        if blob[:6] != _MAGIC or struct.unpack(">I", blob[6:10]) != (1,):
            raise ValueError
        public, namespace, _, method, signature = _fields(blob[10:])
        kind, raw = _fields(signature)
        if (namespace, method, kind) != (NAMESPACE, _HASH, _KIND):
            raise ValueError
    except (ValueError, struct.error):
        raise SigningError(
            f"{SIGNATURE} is no SSH signature with an Ed25519 key for 'saddlepoint'. Sign the run "
            "again: saddlepoint runs verify RUN --sign KEY."
        ) from None
    return public, raw


def _signed_data(content: bytes) -> bytes:
    digest = hashlib.sha512(content).digest()
    return _MAGIC + _string(NAMESPACE) + _string(b"") + _string(_HASH) + _string(digest)


def _string(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content


def _fields(blob: bytes) -> list[bytes]:
    """The strings that a blob consists of, each with its length before it."""
    fields = []
    while blob:
        (length,) = struct.unpack(">I", blob[:4])
        if len(blob) < 4 + length:
            raise struct.error("a string is longer than the blob")
        fields.append(blob[4 : 4 + length])
        blob = blob[4 + length :]
    return fields


def _fingerprint(public: bytes) -> str:
    """As `ssh-keygen -l` prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(public).digest()).decode().rstrip("=")


def _manifest(folder: Path) -> bytes:
    return _read(folder / MANIFEST, "the run has no manifest. Run its command again to write one")


def _read(path: Path, missing: str) -> bytes:
    try:
        return read_bytes(path, _LARGEST if path.name != MANIFEST else 2**28)
    except FileNotFoundError:
        raise SigningError(f"{missing}: {path}.") from None
    except ReadError as error:
        raise SigningError(str(error)) from None
