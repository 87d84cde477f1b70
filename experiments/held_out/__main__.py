"""`python -m experiments.held_out CSV`: the table of reports/held_out."""

import sys

from experiments.held_out.score import main

if __name__ == "__main__":
    main(sys.argv[1])
