"""Tests of extproc.prefix."""
