"""A run: plan, resume, worker processes, real ranks, progress."""
