"""Measured claims, each beside its peer in the same run: `python -m benchmarks [name …]`."""
