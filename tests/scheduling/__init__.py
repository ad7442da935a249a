"""Tests of extproc.scheduling."""
