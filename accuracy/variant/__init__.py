"""Schedules, one a file: how each rank (`accuracy.variant.base.Rank`) computes attention; `SCHEDULE` of the file."""
