"""Certificates for one test, made by the openssl command."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Signed:
    """PEM files."""

    cert: Path
    key: Path


def authority(folder: Path, name: str) -> Signed:
    return _request(folder, name, "-x509", "-days", "2", "-subj", f"/CN={name}")


def signed_by(ca: Signed, folder: Path, name: str) -> Signed:
    """A certificate for localhost and 127.0.0.1."""
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    options = ["-x509", "-days", "2", "-subj", f"/CN={name}", "-addext", names, "-addext", "basicConstraints=CA:FALSE"]
    return _request(folder, name, *options, "-CA", str(ca.cert), "-CAkey", str(ca.key))


def _request(folder: Path, name: str, *options: str) -> Signed:
    made = Signed(folder / f"{name}.pem", folder / f"{name}.key")
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(made.key)]
    command = ["openssl", "req", *options, *key, "-out", str(made.cert)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert result.returncode == 0, result.stderr
    return made
