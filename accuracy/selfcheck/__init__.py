"""Can the toolkit fail? Planted faults must be named, healthy variants must not be, tolerances must have teeth."""
