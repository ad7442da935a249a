"""Options of the whole test run."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    # Here and not in tests/envoy: pytest reads options only from the conftest files of its start folders.
    parser.addoption(
        "--envoy-versions",
        metavar="all|V1,V2",
        help="Envoy versions for the tests with real Envoy; default: the oldest and the newest supported one",
    )
