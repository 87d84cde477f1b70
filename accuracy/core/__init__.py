"""What every part shares: the case, its fields, dtypes, masks, paths, errors. Nothing here imports torch."""
