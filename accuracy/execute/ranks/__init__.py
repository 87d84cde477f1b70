"""Real ranks: who starts their processes, how these exchange tensors, what each does for a case."""
