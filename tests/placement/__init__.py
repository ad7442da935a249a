"""Tests of extproc.placement, through the router."""
