"""On which rank did a failed cell get worse? Its error over single device's by rank, run and baseline."""

from accuracy.chart import drawing, mark
from accuracy.chart.svg import to_svg
from accuracy.chart.view import Chart, Panel, Table, cells
from accuracy.core.number import plain
from accuracy.gate.decision import Decision
from accuracy.gate.item import FAILED, Item
from accuracy.gate.overlay import BASELINE_KEY, FAILED_KEY

MOST = 4  # cells, the worst first
MOST_ROWS = 64  # ranks in a table


def panels(decision: Decision) -> list[Panel]:
    """A panel a failed cell that has several ranks, the worst first."""
    failed = [item for item in decision.items if item.state == FAILED and item.cell and len(item.cell.ranks) > 1]
    return [_panel(f"by-rank{place}", item) for place, item in enumerate(failed[:MOST])]


def _panel(slug: str, item: Item) -> Panel:
    assert item.cell is not None
    new, old = item.cell.ranks, item.baseline.ranks if item.baseline else {}
    slot = 1 + mark.colour_of(str(item.cell.get("variant")))
    axes = drawing.new_axes(str(item.cell.get("tensor")), "rank")
    drawing.log_y(axes, [1.0, *new.values(), *old.values()])
    places = [float(place) for place in axes.get_yticks()]
    drawing.fix_ticks(axes.yaxis, places, [plain(place, 2) for place in places])
    drawing.fix_ticks(axes.xaxis, list(new)[:: max(1, len(new) // 8)])
    axes.axhline(1.0, color=drawing.SINGLE_DEVICE, linewidth=1.1, linestyle=(0, (6, 3)), zorder=1.5)
    drawing.line(axes, old, old.values(), slot, marker="", linestyle=(0, (1.2, 1.6)))
    drawing.line(axes, new, new.values(), slot, markersize=4)
    worst = max(new, key=lambda rank: new[rank]) if item.rank is None else item.rank
    drawing.marked(axes, [worst], [new[worst]])
    title = f"Error over single device's by rank, {item.name}, run and baseline"
    before = f", baseline {plain(old[worst])}" if worst in old else ""
    chart = Chart(to_svg(axes, slug, title, f"Rank {worst}: {plain(new[worst])}{before}."), title)
    rows = tuple(
        cells(rank, plain(new[rank]), plain(old[rank]) if rank in old else "") for rank in list(new)[:MOST_ROWS]
    )
    legend = (mark.series_key("run", slot), *([BASELINE_KEY] if old else []), FAILED_KEY)
    data = (Table(title, ("rank", "run", "baseline"), rows),)
    return Panel(slug, item.place, note=item.reason, legend=legend, charts=(chart,), data=data)
