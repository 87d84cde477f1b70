"""How a simulated world runs the ranks of a ring together: side by side in a batch, every bit the same."""
