"""Planted faults: healthy schedules with one function that is wrong, one a file, each from a public report.

A fault is a schedule like those in accuracy/variant, of which it runs on the first sharding, with what the verdict
must say of which tensors (EXPECTED). `python -m tests.fault` and the tests find them on disk.
"""
