"""Tests of extproc.telemetry."""
