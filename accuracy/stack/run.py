"""A run of stacks: planned, then measured case by case into `layers/` of a folder that can be killed and resumed."""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from tqdm import tqdm

from accuracy.config.read import Configuration
from accuracy.core.errors import ConfigError
from accuracy.execute import run
from accuracy.measure.provenance import code_of
from accuracy.results import layers, table
from accuracy.runtime import device
from accuracy.stack.case import StackCase, plan_stacks
from accuracy.stack.measure import Measurer
from accuracy.stack.memory import bytes_needed

NOTHING_MEASURED, INTERRUPTED = 3, 130


def measure(configuration: Configuration, config: Mapping[str, Any], command: list[str]) -> int:
    """Plan, measure, report; the exit status, as `accuracy.cli.run.measure`. Raises ConfigError before any work."""
    plans = plan_stacks(configuration, device.free_bytes(configuration.device))
    folder = run.folder_of(configuration, config)
    if configuration.dry_run:
        print(_plan_text(plans, folder))
        return 0
    run.open_folder(folder, configuration.device)
    if (folder / "results").exists():
        raise ConfigError(f"output_dir={folder} holds rows of attention alone; choose another output_dir")
    unsupported = sum(each.unsupported is not None for each in plans)
    print(f"{len(plans)} stacks on {configuration.device}, {unsupported} of them unsupported", file=sys.stderr)
    finished = execute(configuration, config, plans, folder, command)
    statuses = Counter(layers.read(folder).drop_duplicates("case_id")["status"])
    print(", ".join(f"{count} {status}" for status, count in sorted(statuses.items())))
    print(_worst(layers.read(folder)))
    if configuration.report and statuses:
        from accuracy.report.depth import write_report

        print(f"report: {write_report(folder).path}")
    if not finished:
        return INTERRUPTED
    return 0 if statuses[table.OK] else NOTHING_MEASURED


def execute(
    configuration: Configuration, config: Mapping[str, Any], plans: Sequence[StackCase], folder: Path,
    command: list[str],
) -> bool:  # fmt: skip
    """Measure what the folder does not have; whether it came to its end."""
    about = run.record(configuration, config, [each.id for each in plans], command)
    about["schema_version"] = layers.SCHEMA_VERSION
    table.write_json(folder / "run.json", about)
    pending = [each for each in plans if not _done(folder, each)]
    measurer = Measurer(configuration.name, configuration.batched)
    with tqdm(total=len(plans), initial=len(plans) - len(pending), unit="stack", dynamic_ncols=True) as progress:
        try:
            for each in pending:
                progress.set_postfix_str(f"{each.case.variant.name} L={each.stack.layers} W={each.case.world_size}")
                layers.write(folder, each.id, measurer.measure(each))
                progress.update()
        except KeyboardInterrupt:
            return False
    table.write_json(folder / "run.json", about | {"ended": run.now()})
    return True


def _done(folder: Path, each: StackCase) -> bool:
    found = layers.finished(folder, each.id)
    return found is not None and found.code == code_of(each.case)


def _plan_text(plans: Sequence[StackCase], folder: Path) -> str:
    runnable = [each for each in plans if each.unsupported is None]
    reasons = Counter(each.unsupported for each in plans if each.unsupported)
    most = max(bytes_needed(each.case, each.stack) for each in runnable)
    return "\n".join(
        [
            *(_line(each) for each in runnable),
            *(f"unsupported: {count} x {reason}" for reason, count in reasons.most_common()),
            f"{len(plans)} stacks planned, {len(runnable)} to measure; at most about {most / 2**30:.2f} GiB",
            f"output_dir: {folder} (nothing written)",
        ]
    )


def _line(each: StackCase) -> str:
    case, stack = each.case, each.stack
    words = [
        each.id, case.variant.name, case.precision_text, case.kernel.name, case.dtype, f"W={case.world_size}",
        f"L={stack.layers}", f"E={stack.width}", f"S={case.problem.seqlen}", stack.weights, f"gain={stack.gain:g}",
        f"residual={stack.residual}", "" if stack.norm else "no norm", f"seed={case.seed}",
    ]  # fmt: skip
    return "  ".join(word for word in words if word)


def _worst(rows: pd.DataFrame) -> str:
    """Of every variant and policy, the gradient at the bottom of its deepest stack on most ranks: median over seeds."""
    keys = ["dtype", "weights", "gain", "residual", "norm", "variant", "precision"]
    bottom = rows[(rows["status"] == table.OK) & (rows["tensor"] == "dx") & (rows["layer"] == 1)]
    if bottom.empty:
        return ""
    deepest = bottom["layers"] == bottom.groupby(keys)["layers"].transform("max")
    numbers = ["error_rel", "x_single_device", "x_exact", "diff_rel"]
    middle = bottom[deepest].groupby([*keys, "layers", "world_size"])[numbers].median().reset_index()
    return str(middle.groupby(keys).tail(1).to_string(index=False, float_format=lambda value: f"{value:.3g}"))
