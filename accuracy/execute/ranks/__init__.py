"""Ranks as processes of their own: who starts them, what they do for a case, how their faults become reasons."""
