"""Benchmarks that people can run themselves; each sub-package is one `make bench-...` target."""
