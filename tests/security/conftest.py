"""Certificates, made once: two authorities, of which each has signed for a service and a client."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.support import certificates
from tests.support.certificates import Signed


@dataclass(frozen=True, slots=True)
class Issued:
    """What one authority has signed."""

    ca: Signed
    service: Signed
    client: Signed


def _issue(folders: pytest.TempPathFactory, name: str) -> Issued:
    folder = folders.mktemp(name)
    ca = certificates.authority(folder, "ca")
    return Issued(ca, *(certificates.signed_by(ca, folder, kind) for kind in ("service", "client")))


@pytest.fixture(scope="session")
def first(tmp_path_factory: pytest.TempPathFactory) -> Issued:
    return _issue(tmp_path_factory, "first")


@pytest.fixture(scope="session")
def second(tmp_path_factory: pytest.TempPathFactory) -> Issued:
    return _issue(tmp_path_factory, "second")
