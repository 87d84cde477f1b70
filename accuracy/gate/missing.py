"""What should have numbers and has none: lost, dead and unsupported cases, and cells that only the baseline has."""

from collections.abc import Mapping
from typing import Any

from accuracy.gate.item import Item
from accuracy.results import cell
from accuracy.results.cell import KEYS, Cell, Key
from accuracy.results.run_table import RunTable

Names = Mapping[str, str]


def without_numbers(
    run: RunTable,
    baseline: RunTable | None,
    cells: Mapping[Key, Cell],
    base: Mapping[Key, Cell],
    also: list[str],
    part: bool,
) -> list[Item]:
    """Items for all of them; part: cells of the baseline that this run did not plan are not missed."""
    broken, unsupported = cell.broken(run), cell.unsupported(run)
    found = set(run.results["case_id"])
    lost = [case for case in run.planned if case not in found]
    names = {**(cell.case_names(baseline) if baseline else {}), **cell.case_names(run)}
    wanted = set(baseline.planned) if baseline else set()
    had = set(cell.unsupported(baseline)) if baseline else set()
    items = [Item(names.get(case, f"case {case}"), "missing", "planned, and not in the table") for case in lost]
    items += [Item(names[case], "broken", reason) for case, reason in broken.items()]
    items += _unsupported(unsupported, names, wanted - had)
    items += _only_in_baseline(run, baseline, cells, base, also, part) if baseline else []
    if not run.about.get("ended") and not lost:
        items.append(Item("the run", "missing", "did not record its end: it was interrupted; repeat its command"))
    return items


def _unsupported(unsupported: Names, names: Names, measured_before: set[str]) -> list[Item]:
    """One item a setting, whatever its seeds; one that the baseline measured is missed."""
    items: dict[tuple[str, str, str], Item] = {}
    for case, reason in unsupported.items():
        name = names[case].rpartition(" seed ")[0]
        missed = case in measured_before
        said = f"the baseline has it, and now: {reason}" if missed else reason
        label = "missing" if missed else "unsupported"
        items.setdefault((name, label, said), Item(name, label, said))
    return list(items.values())


def _only_in_baseline(
    run: RunTable,
    baseline: RunTable,
    cells: Mapping[Key, Cell],
    base: Mapping[Key, Cell],
    also: list[str],
    part: bool,
) -> list[Item]:
    """Cells of the baseline whose cases the run did not plan, or measured without that tensor."""
    planned = set(run.planned)
    present = set(run.results.loc[run.results["tensor"].notna(), "case_id"])
    cases = _cases(baseline.results)
    items = []
    for key in base:
        if key in cells or not cases[key]:
            continue
        if cases[key] & present:
            items.append(Item(cell.named(key, also), "missing", "the baseline has this tensor, the run has none", key))
        elif not cases[key] & planned and not part:
            items.append(Item(cell.named(key, also), "missing", "the baseline has it, the run did not plan it", key))
    return items


def _cases(results: Any) -> dict[Key, set[str]]:
    rows = results[results["tensor"].notna()]
    return {key: set(group["case_id"]) for key, group in rows.groupby(list(KEYS), sort=False, dropna=False)}
