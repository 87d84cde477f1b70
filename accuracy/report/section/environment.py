"""Section: on what was this measured, with which configuration, by which command?"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from accuracy.chart.view import Table, cells
from accuracy.report.folder import Run


def command_line(run: Run) -> str:
    """The command as it was typed, as far as the record tells."""
    return str(run.record.get("command") or "not recorded")


def provenance_table(run: Run) -> Table:
    """Versions, device and the knobs that change arithmetic."""
    return Table("Environment of the run", ("item", "value"), tuple(cells(*pair) for pair in _flat(_provenance(run))))


def _provenance(run: Run) -> Mapping[str, Any]:
    provenance = run.record.get("provenance")
    return provenance if isinstance(provenance, Mapping) else {}


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield from _flat(item, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", item if isinstance(item, str) else json.dumps(item, default=str)


def configuration_text(run: Run) -> str:
    """The resolved configuration, indented; empty where it was not recorded."""
    config = run.record.get("config")
    return json.dumps(config, indent=2, default=str, ensure_ascii=False) if config else ""
