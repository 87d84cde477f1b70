"""`python -m experiments.probe`: what installed kernels really do, by inputs that give it away, in seconds."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accuracy.cli import Parser, status_of
from accuracy.config.find import complete_part, sources
from accuracy.core.case import Part
from accuracy.core.errors import ConfigError, unknown

EXAMPLES = """examples:
  python -m experiments.probe                                            every kernel on this machine
  python -m experiments.probe kernel=flash_attn,eager dtype=bfloat16
  python -m experiments.probe kernel=flash_attn kernel.flash_attn.deterministic=false question=repeats
  python -m experiments.probe --config-dir MINE kernel=my_kernel         MINE/kernel/my_kernel.py and my_kernel.yaml
  python -m experiments.probe --json reports/probe/nvidia-h200/probe.json
"""
COMMAND = "python -m experiments.probe"
KEYS = ("kernel", "dtype", "question", "device")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table and perhaps write JSON; 0, or 2 for a mistake in the command."""
    parser = Parser(COMMAND, __doc__, EXAMPLES)
    add = parser.add_argument
    add("words", nargs="*", metavar="KEY=VALUE", help="kernel, dtype, question (lists with commas), device")
    add("--json", type=Path, metavar="FILE", help="write the answers with the numbers behind them")
    add("--config-dir", type=Path, metavar="FOLDER", help="a folder with kernels of your own", dest="folder")
    given = parser.parse_args(arguments)
    return status_of(COMMAND, lambda: _probe(given))


def _read(words: Sequence[str]) -> tuple[dict[str, list[str]], dict[str, dict[str, str]]]:
    chosen: dict[str, list[str]] = {}
    options: dict[str, dict[str, str]] = {}
    for word in words:
        key, equals, value = word.partition("=")
        kind, _, knob = key.partition(".")
        if not equals or not value or (knob and kind != "kernel"):
            raise ConfigError(f"{word!r} cannot be read; write KEY=VALUE, KEY one of {', '.join(KEYS)}")
        if knob:
            name, _, option = knob.partition(".")
            options.setdefault(name, {})[option] = value
        elif key not in KEYS:
            raise unknown("key", key, KEYS)
        else:
            chosen[key] = [each.strip() for each in value.strip("[]").split(",")]
    return chosen, options


def _kernels(names: Sequence[str], options: dict[str, dict[str, str]], folders: Sequence[Path]) -> list[Part]:
    """The kernels called `names` (none: all). options: knobs by kernel, as written. Raises ConfigError."""
    known = sources("kernel", folders)
    for name in (*names, *options):
        if name not in known:
            raise unknown("kernel", name, known)
    parts = (Part(name, known[name], tuple(options.get(name, {}).items())) for name in names or sorted(known))
    return [complete_part("kernel", part, strict=False) for part in parts]


def _probe(given: argparse.Namespace) -> None:
    chosen, options = _read(given.words)
    from accuracy.config.read import DEVICES
    from accuracy.core.dtype import FORMATS
    from accuracy.measurement.provenance import provenance
    from accuracy.results import storage
    from accuracy.runtime import arithmetic  # torch is imported only now
    from accuracy.runtime import device as devices
    from experiments.probe import ask, text

    chosen["device"] = [",".join(chosen.get("device", ["auto"]))]  # one
    for key, allowed in {"device": DEVICES, "dtype": FORMATS, "question": ask.QUESTIONS}.items():
        for each in chosen.setdefault(key, list(allowed)):
            if each not in allowed:
                raise unknown(key, each, allowed)
    device = devices.choose(chosen["device"][0])
    kernels = _kernels(chosen.get("kernel", []), options, [given.folder] if given.folder else [])
    if given.json is not None:
        given.json.parent.mkdir(parents=True, exist_ok=True)
    arithmetic.make_exact()
    print(devices.name(device))
    plain: list[dict[str, Any]] = []
    for kernel in kernels:
        began = time.perf_counter()
        report = ask.report(kernel, device, chosen["dtype"], chosen["question"])
        seconds = time.perf_counter() - began
        print(f"\n{text.block(report)}\n  ({seconds:.0f} s)", flush=True)
        plain.append(report.plain() | {"seconds": round(seconds, 1)})
        if given.json is not None:  # after each: what one kernel said is not lost with the next
            command = " ".join([COMMAND, *given.words])
            about = {"schema_version": 1, "command": command, "provenance": provenance(device), "kernels": plain}
            storage.write_json(given.json, about)


if __name__ == "__main__":
    sys.exit(main())
