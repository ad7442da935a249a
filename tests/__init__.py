"""Tests; `tests.support` is what they share."""
