"""The table: schema, reading, writing, checks, history, claims. Nothing here imports torch."""
