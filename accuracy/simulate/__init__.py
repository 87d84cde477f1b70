"""All ranks of a case in this process."""
