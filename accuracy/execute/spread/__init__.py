"""A grid measured by several processes side by side, each on a GPU of its own."""
