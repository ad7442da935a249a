"""Tests of extproc.exchange."""
