"""Section: which rounding makes how much of the error? Shapley shares, a bar in each cell."""

from accuracy.chart.view import Panel, TableCell, grid
from accuracy.core.number import MISSING, plain
from accuracy.verdict.attribution import FINAL, KERNEL_PLACE, NAMES, Attribution


def attribution_panels(found: list[Attribution]) -> list[Panel]:
    """A panel for each variant, dtype and world size whose rounding places were switched in all combinations."""
    groups: dict[str, list[Attribution]] = {}
    for each in found:
        groups.setdefault(f"{each.variant}, {each.dtype}, world size {each.world_size}", []).append(each)
    return [_panel(f"attribution-{place}", label, same) for place, (label, same) in enumerate(groups.items())]


def _panel(slug: str, label: str, found: list[Attribution]) -> Panel:
    heads = {each.tensor: f"{each.tensor} ({plain(each.x_single_device)}x)" for each in found}
    places = [place for place in NAMES if any(place in each.shares for each in found)]
    shares = {(NAMES[place], heads[each.tensor]): _bar(each.shares.get(place)) for place in places for each in found}
    own = [place for place in places if place not in (KERNEL_PLACE, FINAL)]
    excess = {(NAMES[place], heads[each.tensor]): _bar(each.excess.get(place)) for place in own for each in found}
    return Panel(
        slug,
        label,
        "Share of the mean square error; single device has the kernel's rounding and the final one too. Keys and "
        "values travel in the inputs' dtype, which rounds nothing.",
        tables=(grid("Share of the excess over single device", ["place"], heads.values(), excess),),
        data=(grid("Share of the whole mean square error", ["place"], heads.values(), shares),),
    )


def _bar(share: float | None) -> TableCell:
    """A percentage with a bar as long."""
    if share is None:
        return TableCell(MISSING, kind="absent")
    text = f"{round(100 * share, 1) + 0.0:.1f}%"  # no minus zero
    return TableCell(text, kind="bar", heat=round(max(0.0, min(1.0, share)), 3))
