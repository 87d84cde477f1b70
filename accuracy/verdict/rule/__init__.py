"""Rules of one kind a file: `judge(evidence) -> Finding | None`, with their thresholds and where those come from."""
