"""Tests of extproc.pool."""
