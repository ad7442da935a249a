"""Tests of extproc.router."""
