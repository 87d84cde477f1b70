"""Which command measures this row again? Built from the row's own columns, quoted for a POSIX shell."""

import shlex

from accuracy.core import fields


def command(row: fields.Row) -> str:
    """`accuracy variant=ring dtype=bfloat16 ...` for one row of the results table; missing columns are left out."""
    return shlex.join(["accuracy", *fields.words(row)])
