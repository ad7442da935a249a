"""Tests of extproc.app."""
