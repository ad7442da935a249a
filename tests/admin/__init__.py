"""Tests of extproc.admin."""
