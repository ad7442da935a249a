"""Tests of extproc.cli."""
