"""From Hydra's configuration to cases: every key known, every value checked."""
