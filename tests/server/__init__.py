"""Tests of extproc.server."""
