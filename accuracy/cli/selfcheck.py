"""`accuracy-selfcheck`: does the toolkit find faults, and only faults? Or: would a tolerance pass a wrong answer?"""

import argparse
import sys
from collections.abc import Sequence

from accuracy.core.errors import ConfigError

USAGE_ERROR, FAILED = 2, 1
EPILOG = "KEY=VALUE words choose the problem of --tolerance as for `accuracy`: problem.mask=full inputs=sum_loss"


def main(arguments: Sequence[str] | None = None) -> int:
    """0: every fault named and no false alarm, or no wrong answer passes; 1 otherwise; 2 for a usage error."""
    parser = argparse.ArgumentParser(prog="accuracy-selfcheck", description=__doc__, epilog=EPILOG)
    add = parser.add_argument
    add("--fault", action="append", metavar="NAME", help="only these planted faults, and no healthy variants")
    add("--tolerance", metavar="atol=A,rtol=R", help="a tolerance to try on wrong answers")
    add("--metric", choices=("max", "mean"), default="max", help="of the tolerance: every element, or the mean")
    add("--tokens", type=int, metavar="N", help="of the tolerance: only the first N tokens are compared")
    add(
        "--against",
        choices=("reference", "itself"),
        default="reference",
        help="what the tested answer is compared with",
    )
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE")
    given = parser.parse_args(arguments)
    from accuracy.cli.run import one_line

    try:
        return _vacuity(given) if given.tolerance else _rates(given)
    except ConfigError as error:
        print(f"accuracy-selfcheck: {error}", file=sys.stderr)
    except Exception as error:
        if not type(error).__module__.startswith(("hydra", "omegaconf")):
            raise
        print(f"accuracy-selfcheck: {one_line(error)}", file=sys.stderr)
    return USAGE_ERROR


def _rates(given: argparse.Namespace) -> int:
    from tqdm import tqdm

    from accuracy.core.errors import unknown
    from accuracy.runtime import arithmetic
    from accuracy.selfcheck import measure, rates
    from accuracy.verdict.verdict import verdicts

    arithmetic.make_exact()
    faults = {fault.name: fault for fault in measure.faults()}
    for name in given.fault or ():
        if name not in faults:
            raise unknown("--fault", name, list(faults))
    chosen = [faults[name] for name in given.fault or faults]
    healthy = [] if given.fault else measure.healthy()
    with tqdm(unit="case", dynamic_ncols=True) as progress:
        names = [*(fault.name for fault in chosen), *healthy]
        results = measure.results(names, *given.words, done=progress.update)
    judged = verdicts(results)
    found = [rates.detection(fault.name, fault.expected, judged) for fault in chosen]
    for each in found:
        said = [f"{tensor} {'/'.join(each.found.get(tensor, ('nothing',)))}" for tensor in each.expected]
        print(f"{'named ' if not each.missed else 'MISSED'} {each.fault}: {', '.join(said)}")
    caught = sum(not each.missed for each in found)
    print(f"detection: {caught} of {len(found)} planted faults named ({caught / len(found):.0%})")
    if not healthy:
        return 0 if caught == len(found) else FAILED
    alarms = rates.false_alarms(healthy, judged, results)
    for row in alarms.alarms.itertuples():
        where = f"{row.variant} {row.dtype} world size {row.world_size} {row.tensor}"
        print(f"FALSE ALARM {where}: {row.label}, {row.sentence}")
    share = alarms.alarmed / max(1, alarms.combinations)
    print(f"false alarms: {alarms.alarmed} of {alarms.combinations:,} healthy combinations ({share:.2%})")
    return 0 if caught == len(found) and not alarms.alarmed else FAILED


def _vacuity(given: argparse.Namespace) -> int:
    from accuracy.config.compose import compose
    from accuracy.execute.settle import read_settled
    from accuracy.inputs import base as inputs
    from accuracy.runtime import arithmetic
    from accuracy.selfcheck import vacuity

    arithmetic.make_exact()
    limits = vacuity.tolerance(given.tolerance, given.metric, given.tokens, given.against)
    configuration = read_settled(compose(*given.words))
    problem = configuration.problems[0]
    drawn = inputs.draw(configuration.inputs[0], problem, configuration.seeds[0])
    found = vacuity.accepted(limits, problem, inputs.round_to(drawn, configuration.dtypes[0], "cpu"))
    vacuous = False
    for wrong, tensors in found.items():
        passing = [name for name, passes in tensors.items() if passes]
        vacuous |= bool(passing)
        print(f"{wrong} ({vacuity.WRONG[wrong]}): {'passes in ' + ', '.join(passing) if passing else 'is refused'}")
    return FAILED if vacuous else 0


if __name__ == "__main__":
    sys.exit(main())
