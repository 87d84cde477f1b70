"""The table: schema, reading, writing, checks, claims. Nothing here imports torch."""
