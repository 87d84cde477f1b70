"""A case run again for what its numbers do not say: whether bits change, and what every ring step does."""
