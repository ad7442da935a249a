"""Tests of extproc.autoscale."""
