"""`make bench`: how fast is the measuring itself? Ratios within one run, on whatever device is here.

Every line says what was measured, the value, and the target it is held against; nothing passes or fails here.
"""

import torch

from accuracy.runtime import arithmetic, device
from bench import capture, many_gpus, ranks, report, schedule, throughput, truth, waits


def main() -> None:
    arithmetic.make_exact()
    here = device.choose("auto")
    print(f"{device.name(here)}, torch {torch.__version__}\n")
    for part in (schedule, truth, throughput, many_gpus, ranks, report, capture, waits):
        for line in part.lines(here):
            print(line, flush=True)


if __name__ == "__main__":  # processes that a benchmark starts import this module
    main()
