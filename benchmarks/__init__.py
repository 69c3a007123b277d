"""Benchmarks against the peer: ``python -m benchmarks [GROUP ...] [--json FILE]``."""
