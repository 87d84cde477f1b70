"""`make trace`: how much code runs for one ring case on two ranks, without a report? Files, functions and calls.

It counts in a fresh process, from the import of `accuracy` on. The bodies of modules and classes are no functions;
comprehensions and lambdas, which Python runs as functions of their own, are counted apart.
"""

import inspect
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGE = Path(__file__).parents[1] / "accuracy"
WORDS = ("variant=ring", "world_size=2", "dtype=bfloat16", "seed=0", "device=cpu", "workers=1", "report=false")


def main() -> None:
    calls: Counter[tuple[str, str, int]] = Counter()
    loaded: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(f"{PACKAGE}/"):
            return
        loaded.add(code.co_filename)
        if code.co_flags & inspect.CO_OPTIMIZED:
            calls[code.co_filename, code.co_name, code.co_firstlineno] += 1

    with tempfile.TemporaryDirectory() as folder:
        sys.setprofile(note)
        from accuracy.cli.application import start

        start([*WORDS, f"output_dir={folder}/run"])
        sys.setprofile(None)
    named = {key: count for key, count in calls.items() if not key[1].startswith("<")}
    of_files: Counter[str] = Counter()
    for (file, _, _), count in named.items():
        of_files[file] += count
    for file, count in of_files.most_common():
        number = sum(key[0] == file for key in named)
        print(f"{count:8} calls of {number:3} functions in {Path(file).relative_to(PACKAGE)}")
    print(f"{len(loaded)} files loaded, {len(of_files)} run, {len(named)} functions, {sum(named.values())} calls; "
          f"{len(calls) - len(named)} comprehensions and lambdas")  # fmt: skip


if __name__ == "__main__":
    main()
