"""Does the toolkit name planted faults, and accuse no healthy variant?

python -m tests.unit.fault        # all faults and all healthy shapes; `make stress` writes what it prints
"""

import os
import sys

import pandas as pd
from tqdm import tqdm

from accuracy.verdict.verdict import verdicts
from tests.unit.fault import healthy, measure, rates
from tests.unit.fault.planted import PARTS

FAILED = 1
OF_FAULTS = ("~also.trace", "also.explain.dtype=float64")  # traces name steps, not verdicts; one dtype proves a cause
TOGETHER = 8
"""Faults of a job: alike in their problem, they share its reference and single device."""


def main() -> int:
    """Return 0 where every fault is named and no healthy variant is accused, 1 otherwise."""
    variants, alike = measure.healthy(), sorted(PARTS, key=lambda name: PARTS[name].where)
    jobs = [(variants, words) for words in ((), *map(healthy.overrides, healthy.SHAPES))]  # the longest first
    jobs += [(alike[begin : begin + TOGETHER], OF_FAULTS) for begin in range(0, len(alike), TOGETHER)]
    tables = measure.side_by_side(jobs, min(os.cpu_count() or 1, len(jobs)))
    shown = tqdm(tables, total=len(jobs), unit="job", dynamic_ncols=True)
    every = [(table, verdicts(table.results)) for table in shown]
    judged = pd.concat([each for _, each in every])
    found = [rates.detection(name, fault.expected, judged, fault.right) for name, fault in PARTS.items()]
    for each in found:
        labels = [f"{tensor} {'/'.join(each.found.get(tensor, ('nothing',)))}" for tensor in each.expected]
        accused = f"; but right: {', '.join(each.accused)}" if each.accused else ""
        print(f"{'named ' if each.caught else 'MISSED'} {each.fault}: {', '.join(labels)}{accused}")
    caught = sum(each.caught for each in found)
    print(f"detection: {caught} of {len(found)} planted faults named ({caught / len(found):.0%})")
    hypotheses, results = (pd.concat([getattr(each, name) for each, _ in every]) for name in ("hypotheses", "results"))
    why = [rates.explanation(name, fault.causes, hypotheses, results) for name, fault in PARTS.items()]
    for cause in why:
        if cause.right is False:
            print(f"WRONG CAUSE {cause.fault}: {', '.join(sorted(cause.proven))}, not {PARTS[cause.fault].causes}")
    proven, wrong = sum(bool(cause.proven) for cause in why), sum(cause.right is False for cause in why)
    print(f"causes: {proven} of {len(why)} faults proven ({proven / len(why):.0%}), {wrong} wrong")
    alarmed = combinations = 0
    for table, verdict in every:
        alarms = rates.false_alarms(variants, verdict, table.results)
        alarmed, combinations = alarmed + alarms.alarmed, combinations + alarms.combinations
        for row in alarms.alarms.to_dict("records"):
            where = "{variant} {kernel} {dtype} world size {world_size} {tensor} seqlen {seqlen}".format_map(row)
            print(f"FALSE ALARM {where}: {row['label']}, {row['sentence']}")
    bound = f"at most {3 / combinations:.1e} with 95%" if not alarmed else f"{alarmed / combinations:.2%}"
    print(f"false alarms: {alarmed} of {combinations:,} healthy combinations ({bound})")
    return 0 if caught == len(found) and not alarmed else FAILED


if __name__ == "__main__":
    sys.exit(main())
