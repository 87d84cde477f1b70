"""The decision as JSON, for other programs: check.json."""

import json
import math
from typing import Any

from accuracy.gate.decision import Decision
from accuracy.gate.exits import WORDS
from accuracy.gate.fingerprint import Difference, hard, soft
from accuracy.gate.item import FAILED, INCOMPLETE, PASSED, SKIPPED, Item
from accuracy.results.cell import KEYS, Cell

SCHEMA_VERSION = 1


def record(decision: Decision) -> str:
    """Plain JSON; a number that is not finite is null."""
    content = {
        "schema_version": SCHEMA_VERSION,
        "experiment": decision.run.experiment,
        "exit": int(decision.exit),
        "outcome": WORDS[decision.exit],
        "counts": {state: decision.count(state) for state in (PASSED, FAILED, INCOMPLETE, SKIPPED)},
        "fingerprint": {"hard": hard(decision.run.about), "soft": soft(decision.run.about)},
        "baseline": _baseline(decision),
        "notes": list(decision.notes),
        "items": [_item(item) for item in decision.items],
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def _baseline(decision: Decision) -> dict[str, Any] | None:
    if decision.baseline is None:
        return None
    return {
        "folder": str(decision.baseline.folder),
        "git_commit": decision.baseline.about["provenance"].get("git_commit"),
        "comparable": not decision.hard,
        "hard_differences": [_difference(each) for each in decision.hard],
        "soft_differences": [_difference(each) for each in decision.soft],
    }


def _difference(each: Difference) -> dict[str, str]:
    return {"name": each.name, "baseline": each.baseline, "run": each.run}


def _item(item: Item) -> dict[str, Any]:
    return {
        "name": item.name,
        "label": item.label,
        "state": item.state,
        "reason": item.reason,
        "key": None if item.key is None else dict(zip(KEYS, map(_plain, item.key), strict=True)),
        "effect": _plain(item.effect),
        "p": _plain(item.p),
        "seen": _plain(item.seen),
        "run": _numbers(item.cell),
        "baseline": _numbers(item.baseline),
    }


def _numbers(cell: Cell | None) -> dict[str, Any] | None:
    if cell is None or not cell.y:
        return None
    return {
        "error_rel": _plain(cell.error),
        "x_single_device": _plain(cell.ratio),
        "worst_rank_x_single_device": _plain(cell.rank_ratio),
        "largest_x_single_device": _plain(cell.max_ratio),
        "log_ratio_by_seed": {str(seed): _plain(cell.y[seed]) for seed in cell.seeds},
    }


def _plain(value: Any) -> Any:
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value
