"""`make bench`: how fast is the measuring itself? Ratios within one run, on whatever device is here.

Every line says what was measured, the value, and the target it is held against; nothing passes or fails here.
"""

import torch

from accuracy import device
from tests.benchmark import ranks, report, schedule, throughput, truth


def main() -> None:
    device.make_arithmetic_exact()
    here = device.choose("auto")
    print(f"{device.name(here)}, torch {torch.__version__}\n")
    for line in (
        *schedule.lines(here),
        *truth.lines(here),
        *throughput.lines(here),
        *ranks.lines(here),
        *report.lines(),
    ):
        print(line, flush=True)


if __name__ == "__main__":  # processes that a benchmark starts import this module
    main()
