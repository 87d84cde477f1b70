"""The first screen: what the run found, its picture, and every variant beside it."""
