"""One file per group; each registers itself with :func:`benchmarks.harness.group`."""
