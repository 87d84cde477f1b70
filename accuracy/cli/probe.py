"""`accuracy-probe`: what installed kernels really do, by inputs that give it away, in seconds."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accuracy.core.errors import ConfigError, unknown

USAGE_ERROR = 2
EXAMPLES = """examples:
  accuracy-probe                                            every kernel on this machine
  accuracy-probe kernel=flash_attn,eager dtype=bfloat16
  accuracy-probe kernel=flash_attn kernel.flash_attn.deterministic=false question=repeats
  accuracy-probe --config-dir MINE kernel=my_kernel         MINE/kernel/my_kernel.py and my_kernel.yaml
  accuracy-probe --json reports/probe/nvidia-h200/probe.json
"""
KEYS = ("kernel", "dtype", "question", "device")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table and perhaps write JSON; 0, or 2 for a mistake in the command."""
    parser = argparse.ArgumentParser(
        prog="accuracy-probe",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "words", nargs="*", metavar="KEY=VALUE", help="kernel, dtype, question (lists with commas), device"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the answers with the numbers behind them")
    parser.add_argument("--config-dir", type=Path, metavar="FOLDER", help="a folder with kernels of your own")
    given = parser.parse_args(arguments)
    try:
        probe(*_read(given.words), given.json, [given.config_dir] if given.config_dir else [], list(given.words))
    except (ConfigError, OSError) as error:
        print(f"accuracy-probe: {error}", file=sys.stderr)
        return USAGE_ERROR
    return 0


def _read(words: Sequence[str]) -> tuple[dict[str, list[str]], dict[str, dict[str, str]]]:
    """What was chosen by key, and knobs by kernel."""
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


def probe(
    chosen: dict[str, list[str]], options: dict[str, dict[str, str]], json: Path | None, folders: Sequence[Path],
    words: list[str],
) -> None:  # fmt: skip
    """Ask the chosen kernels the chosen questions. Raises ConfigError."""
    from accuracy.config.read import DEVICES
    from accuracy.core.dtype import FORMATS
    from accuracy.probe import ask, subjects, text
    from accuracy.results import table
    from accuracy.runtime import arithmetic  # torch is imported only now
    from accuracy.runtime import device as devices

    one_device = {"device": [",".join(chosen.get("device", ["auto"]))]}
    chosen = {"dtype": list(FORMATS), "question": list(ask.QUESTIONS), **chosen, **one_device}
    for key, allowed in (("device", DEVICES), ("dtype", FORMATS), ("question", ask.QUESTIONS)):
        for each in chosen[key]:
            if each not in allowed:
                raise unknown(key, each, allowed)
    dtypes, questions = chosen["dtype"], chosen["question"]
    device = devices.choose(chosen["device"][0])
    kernels = subjects.chosen(chosen.get("kernel", []), options, device, folders)
    if json is not None:
        json.parent.mkdir(parents=True, exist_ok=True)
    arithmetic.make_exact()
    print(devices.name(device))
    plain: list[dict[str, Any]] = []
    for kernel in kernels:
        began = time.perf_counter()
        report = ask.report(kernel, dtypes, questions)
        seconds = time.perf_counter() - began
        print(f"\n{text.block(report)}\n  ({seconds:.0f} s)", flush=True)
        plain.append(report.plain() | {"seconds": round(seconds, 1)})
        if json is not None:  # after each: what one kernel said is not lost with the next
            table.write_json(json, _content(device, words, plain))


def _content(device: str, words: list[str], kernels: list[dict[str, Any]]) -> dict[str, Any]:
    from accuracy.measurement.provenance import provenance

    return {"schema_version": 1, "command": " ".join(["accuracy-probe", *words]), "provenance": provenance(device),
            "kernels": kernels}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
