"""Section: which rounding makes how much of the error? Bars of Shapley shares, a chart a tensor."""

from accuracy.chart import drawing
from accuracy.chart.svg import to_svg
from accuracy.chart.view import Chart, Panel, grid
from accuracy.core.number import MISSING, plain
from accuracy.report.series import slot_of
from accuracy.verdict.attribution import FINAL, KERNEL_PLACE, NAMES, Attribution

BAR = 0.7


def attribution_panels(found: list[Attribution]) -> list[Panel]:
    """A panel for each variant, dtype and world size whose rounding places were switched in all combinations."""
    groups: dict[str, list[Attribution]] = {}
    for each in found:
        groups.setdefault(f"{each.variant}, {each.dtype}, world size {each.world_size}", []).append(each)
    return [_panel(f"attribution-{place}", label, same) for place, (label, same) in enumerate(groups.items())]


def _panel(slug: str, label: str, found: list[Attribution]) -> Panel:
    heads = {each.tensor: f"{each.tensor} ({plain(each.x_single_device)}x)" for each in found}
    places = [place for place in NAMES if any(place in each.shares for each in found)]
    shares = {
        (NAMES[place], heads[each.tensor]): _percent(each.shares.get(place)) for place in places for each in found
    }
    own = [place for place in places if place not in (KERNEL_PLACE, FINAL)]
    excess = {(NAMES[place], heads[each.tensor]): _percent(each.excess.get(place)) for place in own for each in found}
    return Panel(
        slug,
        label,
        "Share of the mean square error; single device has the kernel's rounding and the final one too. Keys and "
        "values travel in the inputs' dtype, which rounds nothing.",
        charts=tuple(_chart(f"{slug}-{each.tensor}", each) for each in found),
        tables=(grid("Share of the excess over single device", ["place"], heads.values(), excess),),
        data=(grid("Share of the whole mean square error", ["place"], heads.values(), shares),),
    )


def _chart(name: str, each: Attribution) -> Chart:
    """Horizontal bars, the largest on top, single device's own in the softer colour."""
    ordered = sorted(each.shares.items(), key=lambda item: item[1])
    head = f"{each.tensor}: {plain(each.x_single_device)}x single device"
    axes = drawing.new_axes(head, "share of the mean square error, %")
    for place, (key, share) in enumerate(ordered):
        colour = drawing.SOFT if key in (KERNEL_PLACE, FINAL) else drawing.series_colour(slot_of(each.variant))
        axes.barh(place, 100 * share, height=BAR, color=colour)
        axes.text(max(0.0, 100 * share) + 1, place, NAMES[key], va="center", fontsize=8, color=drawing.INK)
    drawing.fix_ticks(axes.yaxis, [])
    drawing.fix_ticks(axes.xaxis, [0, 25, 50, 75, 100])
    axes.set_xlim(min(0.0, 100 * ordered[0][1]), 130)
    title = f"Where the error of {each.tensor} of {each.variant} comes from"
    described = "; ".join(f"{NAMES[key]} {_percent(share)}" for key, share in reversed(ordered))
    return Chart(to_svg(axes, name, title, f"{described}."), title)


def _percent(share: float | None) -> str:
    return MISSING if share is None else f"{round(100 * share, 1) + 0.0:.1f}%"  # no minus zero
