"""One rule a file: `judge(evidence) -> Finding | None`, its threshold and where that comes from in the docstring."""
