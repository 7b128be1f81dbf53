"""Benchmark data sets, loaded by name."""
