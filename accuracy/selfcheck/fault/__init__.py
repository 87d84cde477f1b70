"""Planted faults: small broken copies of healthy schedules, one a file, each from a public report.

A fault is a schedule like those in accuracy/variant, with the sharding it runs on (SHARDING) and what the verdict must
say of which tensors (EXPECTED). `accuracy-selfcheck` and the tests find them on disk.
"""
