"""The gate: did a change make attention less accurate? Reads tables only; never imports torch. evidence -> cell ->
rules (no baseline needed), statistics (against a baseline) -> decision -> what is written"""
