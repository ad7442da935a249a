"""Certificates as a mesh has them: a name of SPIFFE's, signed by one CA."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.istio.placing import Identity
from tests.support.certificates import Signed, authority

SPIFFE = "spiffe://cluster.local/ns/llm/sa/"


def workload(ca: Signed, folder: Path, name: str, *names: str) -> Identity:
    """A certificate with these alternative names (without any: its SPIFFE name alone)."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = [
        "openssl",
        "req",
        "-x509",
        "-days",
        "2",
        "-subj",
        f"/CN={name}",
        "-CA",
        str(ca.cert),
        "-CAkey",
        str(ca.key),
    ]
    command += ["-addext", "basicConstraints=CA:FALSE"]
    command += ["-addext", "subjectAltName=" + ",".join(names or (f"URI:{SPIFFE}{name}",))]
    command += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(cert)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert result.returncode == 0, result.stderr
    return Identity(cert, key, ca.cert)


__all__ = ["SPIFFE", "authority", "workload"]
