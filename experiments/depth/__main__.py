"""`python -m experiments.depth`: attention inside stacks of Llama's blocks, end to end against float64.

Words are those of `accuracy`, with stack.KEY beside them (config/stack/llama.yaml)."""

import sys
from collections.abc import Sequence

from accuracy.cli import NOTHING_MEASURED, Parser, status_of

EXAMPLES = """examples:
  python -m experiments.depth                                             the stacks of README.md
  python -m experiments.depth experiment=forward_faults
  python -m experiments.depth experiment=stack stack.layers=[8,32] variant=ring world_size=[2,4,8]
"""
COMMAND = "python -m experiments.depth"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write FOLDER/stacks.parquet, and print what it says."""
    parser = Parser(COMMAND, __doc__, EXAMPLES)
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help="as for accuracy; experiment=depth by default")
    words = parser.parse_args(arguments).words
    return status_of(COMMAND, lambda: _run(words))


def _run(words: Sequence[str]) -> int:
    from accuracy.results.table import FAILED, OK
    from experiments.claim import judge
    from experiments.depth import plan, run, table

    config = plan.composed(words)
    configuration, plans = plan.planned(config)
    folder = run.folder_of(configuration, config)
    runnable = sum(each.unsupported is None for each in plans)
    print(f"{len(plans)} stacks on {configuration.device}, {len(plans) - runnable} of them unsupported; {folder}")
    if configuration.dry_run:
        return 0
    run.execute(configuration, config, plans, folder, words, lambda line: print(line, file=sys.stderr))
    rows = table.read(folder)
    print("", table.bottom_gradients(rows), sep="\n")
    claims = [claim.line for claim in judge(configuration.name, rows) if claim.holds is not None]
    failed = rows[rows["status"] == FAILED].drop_duplicates("case_id")["reason"]
    print("", *claims, *(f"failed: {reason}" for reason in failed), sep="\n")
    return 0 if (rows["status"] == OK).any() else NOTHING_MEASURED


if __name__ == "__main__":
    sys.exit(main())
