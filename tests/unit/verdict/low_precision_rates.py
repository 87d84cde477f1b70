"""How often is a healthy kernel in 8 or 4 bits called faulty?

    python -m tests.unit.verdict.low_precision_rates [PAIRS]

Of each policy a seeded sample of the pairs (variant, distribution) of tests/unit/verdict/test_low_precision.py:
combinations (variant, dtype, tensor, ranks) that the verdict judged, and how many of them it accused.
"""

import random
import sys

from tests.unit.verdict.test_low_precision import INPUTS, QUANTISING, VARIANTS, alarms


def main(pairs: int) -> int:
    combinations = accused = 0
    for policy in QUANTISING:
        chosen = random.Random(policy).sample([(one, other) for one in VARIANTS for other in INPUTS], pairs)
        found = [alarms(policy, *pair) for pair in chosen]
        wrong, looked_at = sum(len(each.alarms) for each in found), sum(each.combinations for each in found)
        combinations, accused = combinations + looked_at, accused + wrong
        print(f"{policy:20s} {pairs:3d} pairs {looked_at:6,d} combinations {wrong:3d} accused", flush=True)
        for row in (row for each in found for row in each.alarms.itertuples()):
            print(f"    {row.variant} {row.dtype} {row.tensor}: {row.sentence}", flush=True)
    print(f"healthy: {accused} of {combinations:,} combinations of {len(QUANTISING)} policies accused")
    return int(accused > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 6))
