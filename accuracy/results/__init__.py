"""The table: schema, reading, writing, checks. Nothing here imports torch."""
