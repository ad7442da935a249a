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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several processes (`make test`) the tests with a real Envoy stay in one, since they wait more than they
    compute and some count on the machine; the others run beside them."""
    for item in items:
        if item.get_closest_marker("envoy") is not None:
            item.add_marker(pytest.mark.xdist_group("envoy"))
