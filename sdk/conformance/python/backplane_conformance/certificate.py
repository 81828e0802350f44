"""Certificates: what a library reached, bound to its bytes and signed."""

from __future__ import annotations

import argparse
import base64
import datetime
import os
import pathlib
import sys
from typing import Any

from backplane_conformance import files

HEAD = "backplane-certificate 1"
FIELDS = (
    "plugin", "sha256", "level", "badges", "waived", "cases", "kit", "abi", "host", "date", "end",
    "key",
)  # fmt: skip
VALID_DAYS = 366
TRUSTED = (
    pathlib.Path(os.environ.get("XDG_CONFIG_HOME") or pathlib.Path.home() / ".config")
    / "backplane"
    / "trusted_keys"
)


class CertificateError(Exception):
    """A certificate that is not good, and why."""


def _library() -> Any:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise CertificateError(
            "signatures need the package cryptography: pip install torch-backplane[certify]"
        ) from error
    return ed25519, serialization


def _raw_public(key: Any) -> bytes:
    _, serialization = _library()
    return key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)


def keygen(arguments: list[str]) -> int:
    """Writes a private key, readable for its owner alone, and the public one beside it."""
    parser = argparse.ArgumentParser(prog="python -m backplane_conformance keygen")
    parser.add_argument("path", type=pathlib.Path)
    path = parser.parse_args(arguments).path
    try:
        ed25519, serialization = _library()
    except CertificateError as error:
        print(f"keygen: {error}", file=sys.stderr)
        return 2
    key = ed25519.Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(private)
    except FileExistsError:
        print(f"keygen: {path} exists; a key is never overwritten", file=sys.stderr)
        return 2
    public = base64.b64encode(_raw_public(key.public_key())).decode()
    path.with_suffix(".pub").write_text(f"{public} {path.stem}\n")
    print(f"private key: {path}; public key: {path.with_suffix('.pub')}")
    return 0


def read_key(path: pathlib.Path) -> Any:
    """A private key that can sign."""
    ed25519, serialization = _library()
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise CertificateError(f"{path}: {error}") from error
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise CertificateError(f"{path} is no Ed25519 key")
    return key


def write(
    result: dict[str, Any], key_path: pathlib.Path, folder: pathlib.Path, today: datetime.date
) -> pathlib.Path:
    """A certificate of the level that a complete run reached."""
    key = read_key(key_path)
    fields = {
        "plugin": pathlib.Path(result["plugin"]).name,
        "sha256": result["sha256"],
        "level": result["reached"],
        "badges": ", ".join(result["badges"]),
        "waived": ", ".join(sorted(c["id"] for c in result["cases"] if "waived" in c)),
        "cases": len(result["cases"]),
        "kit": result["kit"],
        "abi": result["abi"],
        "host": ", ".join(result["host"][name] for name in ("cpu", "system", "libc")),
        "date": today.isoformat(),
        "end": (today + datetime.timedelta(days=VALID_DAYS)).isoformat(),
        "key": base64.b64encode(_raw_public(key.public_key())).decode(),
    }
    lines = [HEAD, *(f"{name}: {' '.join(str(fields[name]).split())}" for name in FIELDS)]
    content = "\n".join(lines) + "\n"
    signature = base64.b64encode(key.sign(content.encode())).decode()
    path = folder / f"{fields['plugin']}.certificate"
    path.write_text(f"{content}signature: {signature}\n")
    return path


def trusted_keys(key: pathlib.Path | None) -> dict[bytes, str]:
    """Public keys with their names: those of one file, or of the user's folder."""
    if key is not None:
        paths = [key]
    else:
        paths = sorted(TRUSTED.glob("*.pub")) if TRUSTED.is_dir() else []
    out = {}
    for path in paths:
        try:
            words = path.read_text().split()
            raw = base64.b64decode(words[0], validate=True)
        except (OSError, ValueError, IndexError) as error:
            raise CertificateError(f"{path} is no public key: {error}") from error
        if len(raw) != 32:
            raise CertificateError(f"{path} is no Ed25519 public key")
        out[raw] = words[1] if len(words) > 1 else path.stem
    if not out:
        raise CertificateError(f"no key is trusted: give --key, or put one into {TRUSTED}")
    return out


def check(
    path: pathlib.Path, plugin: pathlib.Path, key: pathlib.Path | None, today: datetime.date
) -> dict[str, Any]:
    """The fields of a certificate that is good for this library today, with who signed it."""
    ed25519, _ = _library()
    from cryptography.exceptions import InvalidSignature

    keys = trusted_keys(key)
    try:
        content, _, signature_text = path.read_text().partition("signature: ")
        head, *lines = content.splitlines()
        fields = dict(line.split(": ", 1) for line in lines if ": " in line)
        raw_key = base64.b64decode(fields["key"], validate=True)
        signature = base64.b64decode(signature_text.removesuffix("\n"), validate=True)
    except (OSError, ValueError, KeyError) as error:
        raise CertificateError(f"{path} is no certificate: {error!r}") from error
    missing = [field for field in FIELDS if field not in fields and f"{field}:" not in lines]
    if head != HEAD or missing:
        raise CertificateError(f"{path} is no certificate of this version")
    if raw_key not in keys:
        raise CertificateError(f"{path} is signed with a key that is not trusted")
    try:
        ed25519.Ed25519PublicKey.from_public_bytes(raw_key).verify(signature, content.encode())
    except InvalidSignature as error:
        raise CertificateError(
            f"{path} was changed after it was signed: the signature does not fit"
        ) from error
    have = files.sha256(plugin)
    if fields["sha256"] != have:
        raise CertificateError(
            f"{path} is for another library: sha256 {fields['sha256'][:16]}…, "
            f"{plugin} has {have[:16]}…"
        )
    if today.isoformat() > fields["end"]:
        raise CertificateError(f"{path} ended on {fields['end']}; run backplane certify again")
    return {**fields, "level": int(fields["level"]), "signer": keys[raw_key]}
