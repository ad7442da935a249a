"""Tests of extproc.openai."""
