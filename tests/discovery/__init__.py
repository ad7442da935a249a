"""Tests of extproc.discovery."""
