"""Section: which rounding makes how much of the error? Bars of Shapley shares, a chart a tensor."""

from accuracy.chart import drawing
from accuracy.chart.svg import to_svg
from accuracy.chart.view import Chart, Panel, Table, cells
from accuracy.core.number import plain
from accuracy.verdict.attribution import FINAL, KERNEL_PLACE, NAMES, Attribution

BAR = 0.7


def attribution_panels(found: list[Attribution]) -> list[Panel]:
    """A panel for each variant, dtype and world size whose rounding places were switched in all combinations."""
    groups: dict[tuple[str, str, int], list[Attribution]] = {}
    for each in found:
        groups.setdefault((each.variant, each.dtype, each.world_size), []).append(each)
    return [_panel(f"attribution-{place}", *key, same) for place, (key, same) in enumerate(groups.items())]


def _panel(slug: str, variant: str, dtype: str, size: int, found: list[Attribution]) -> Panel:
    charts = tuple(_chart(f"{slug}-{each.tensor}", each) for each in found)
    places = [place for place in NAMES if any(place in each.shares for each in found)]
    shares = tuple(cells(NAMES[place], *(_percent(each.shares.get(place)) for each in found)) for place in places)
    own = [place for place in places if place not in (KERNEL_PLACE, FINAL)]
    excess = tuple(cells(NAMES[place], *(_percent(each.excess.get(place)) for each in found)) for place in own)
    head = ("place", *(f"{each.tensor} ({plain(each.x_single_device)}x)" for each in found))
    return Panel(
        slug=slug,
        label=f"{variant}, {dtype}, world size {size}",
        note="Share of the mean square error; single device has the kernel's rounding and the final one too. Keys and values"  # noqa: E501
        " travel in the inputs' dtype, which rounds nothing.",
        charts=charts,
        tables=(Table("Share of the excess over single device", head, excess),),
        data=(Table("Share of the whole mean square error", head, shares),),
    )


def _chart(name: str, each: Attribution) -> Chart:
    """Horizontal bars, the largest on top, single device's own in the softer colour."""
    ordered = sorted(each.shares.items(), key=lambda item: item[1])
    axes = drawing.new_axes(
        f"{each.tensor}: {plain(each.x_single_device)}x single device", "share of the mean square error, %"
    )
    for place, (key, share) in enumerate(ordered):
        colour = drawing.SOFT if key in (KERNEL_PLACE, FINAL) else drawing.series_colour(1)
        axes.barh(place, 100 * share, height=BAR, color=colour)
        axes.text(max(0.0, 100 * share) + 1, place, NAMES[key], va="center", fontsize=8, color=drawing.INK)
    drawing.fix_ticks(axes.yaxis, [], [])
    drawing.fix_ticks(axes.xaxis, [0, 25, 50, 75, 100], ["0", "25", "50", "75", "100"])
    axes.set_xlim(min(0.0, 100 * ordered[0][1]), 130)
    title = f"Where the error of {each.tensor} of {each.variant} comes from"
    described = "; ".join(f"{NAMES[key]} {_percent(share)}" for key, share in reversed(ordered))
    return Chart(to_svg(axes, name, title, f"{described}."), title)


def _percent(share: float | None) -> str:
    return "\N{EN DASH}" if share is None else f"{round(100 * share, 1) + 0.0:.1f}%"  # no minus zero
