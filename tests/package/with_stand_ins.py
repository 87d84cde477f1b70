"""`torchrun -m tests.package.with_stand_ins FILE`: a script over TransformerEngine, on its Python side alone."""

import runpy
import sys

from accuracy.package import transformer_engine as its

if __name__ == "__main__":
    with its.in_place():
        runpy.run_path(sys.argv[1], run_name="__main__")
