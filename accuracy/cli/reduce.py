"""`accuracy reduce FOLDER`: the least of a failing capture that still fails, and a script that shows it."""

import argparse
from collections.abc import Sequence

from accuracy.cli import Parser, path_of, show, status_of
from accuracy.core.errors import printable

EPILOG = """examples:
  accuracy reduce RUN/attention --layer 'model.layers.3.self_attn'      rows that the capture proves by itself
  accuracy reduce RUN/attention --fn my_package.attention:attend        run again on ever fewer tokens, heads and dims

The script needs torch and safetensors only; its exit status is 1 while the fault is there, 0 once it is mended.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what is left, write reduced.py and its data; 0, or 2 where nothing is wrong or nothing can be read."""
    parser = Parser("accuracy reduce", __doc__, EPILOG)
    add = parser.add_argument
    add("folder", type=path_of, metavar="FOLDER", help="a capture")
    add("--layer", metavar="LAYER[@STEP]", help="the call; the first that is wrong if not given")
    add("--tensor", choices=("out", "lse", "dq", "dk", "dv"), help="the first that is wrong if not given")
    add("--fn", metavar="FUNCTION", help="package.module:function or FILE.py:function, to run again")
    add("--layout", default="bshd", choices=("bshd", "bhsd", "sbhd", "thd"), help="of the function's tensors")
    add("--device", default="auto", choices=("auto", "cpu", "cuda"))
    add("--to", type=path_of, metavar="FILE.py", help="the script; FOLDER/reduced.py if not given")
    given = parser.parse_args(arguments)
    return status_of("accuracy reduce", lambda: _reduce(given))


def _reduce(given: argparse.Namespace) -> None:
    import os
    import sys

    if os.getcwd() not in sys.path:  # as `python -m` has it: --fn my_module:function
        sys.path.insert(0, os.getcwd())
    from accuracy.live.reduce import reduce
    from accuracy.runtime import arithmetic

    arithmetic.make_exact()
    how = {key: getattr(given, key) for key in ("layer", "tensor", "fn", "layout", "to", "device")}
    show(*map(printable, reduce(given.folder, **how).sentence.splitlines()))
