"""Schedules: how attention is computed over ranks or chunks, one file a schedule.

A schedule's file has `SCHEDULE`, an instance of `accuracy.variant.base.Schedule`: its forward and backward, coroutines
of one rank (`accuracy.variant.base.Rank`), and what it states about itself. A variant is a YAML file that names a
sharding, the file of a forward schedule and that of a backward schedule.
"""
