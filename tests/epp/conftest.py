"""Real Envoy for the Endpoint Picker Protocol: which versions, as in tests/envoy."""

from tests.support.envoy_versions import envoy_binary, envoy_version, pytest_configure, pytest_generate_tests

__all__ = ["envoy_binary", "envoy_version", "pytest_configure", "pytest_generate_tests"]
