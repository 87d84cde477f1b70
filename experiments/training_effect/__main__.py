"""Run `experiments.training_effect.train`, which processes that are spawned import by its name."""

import sys

from experiments.training_effect.train import main

if __name__ == "__main__":
    main(*sys.argv[1:])
