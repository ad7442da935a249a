"""Tests of extproc.affinity."""
