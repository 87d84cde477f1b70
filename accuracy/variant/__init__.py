"""Schedules: how attention is computed over ranks or chunks, one file a schedule.

A schedule's file has `forward` and `backward`, coroutines of one rank (`accuracy.variant.base.Rank`), the shardings it
understands (`SHARDINGS`), its published precision policy (`PRECISION`) and the policy's places that it has
(`FORWARD_PLACES`, `BACKWARD_PLACES`), `unsupported(case)` and, if it has knobs, `Options`. A variant is a YAML file
that names a sharding, a forward schedule and a backward schedule.
"""
