"""Other people's packages as systems under test: one file a package, functions as `accuracy.variant.callable` asks."""
