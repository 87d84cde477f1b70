"""Which seeds of the baseline does a run leave out? A bad seed that nobody plans is missed like one that is lost.

A run has the baseline's first seeds, or fresh ones, and no fewer than `policy.SEEDS` where the baseline has as many.
"""

from collections.abc import Iterator, Mapping

from accuracy.core.number import count
from accuracy.gate.item import Item
from accuracy.results import cell
from accuracy.results.cell import Cell, Key
from accuracy.results.policy import SEEDS

PART = "measure it, or say --part"


def left_out(
    cells: Mapping[Key, Cell], baseline: Mapping[Key, Cell], second: Mapping[Key, Cell], also: list[str]
) -> Iterator[Item]:
    """One item for each kind of gap, named after its first cell. second: of a second look."""
    gaps: dict[str, list[Key]] = {}
    for key, each in cells.items():
        if key in baseline and baseline[key].y and not each.nonfinite:
            ours = {*each.seeds, *(second[key].seeds if key in second else ())}
            if text := _gap(ours, baseline[key].seeds):
                gaps.setdefault(text, []).append(key)
    for text, keys in gaps.items():
        others = f" (and {count(len(keys) - 1, 'further cell')})" if keys[1:] else ""
        yield Item(cell.named(keys[0], also), "missing", f"{text}{others}; {PART}")


def copied(first: Mapping[Key, Cell], second: Mapping[Key, Cell], also: list[str]) -> Iterator[Item]:
    """A second look that has a seed of the first under another number."""
    for key, each in second.items():
        known = {numbers.tobytes() for numbers in (first[key].exact.values() if key in first else ())}
        for seed, numbers in each.exact.items():
            if numbers.tobytes() in known and (numbers[:, 0] > 0).any():
                text = f"seed {seed} of the second look has the numbers of a seed of the first, to the last bit"
                yield Item(cell.named(key, also), "missing", text)
                break


def _gap(ours: set[int], theirs: list[int]) -> str:
    common = ours & set(theirs)
    skipped = [seed for seed in theirs[: len(common)] if seed not in ours]
    if skipped:
        return f"the run leaves out seed {skipped[0]} of the baseline"
    least = min(SEEDS, len(theirs))
    return f"the run has {count(len(ours), 'seed')}, and {least} are needed" if len(ours) < least else ""
