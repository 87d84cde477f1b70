"""The numbers of README.md, from the published tables."""

import pandas as pd
from scipy.special import stdtrit

from experiments.published import Tables, joined, markdown, span

ONE, RING, TE = "one device", "ring, float32 sums", "te_p2p"
PAIRS = ((TE, ONE), (TE, RING), (RING, ONE))
LAST = 100
QUANTITIES = {"loss": f"loss, mean of the last {LAST} steps", "held-out loss": "loss of other text",
              "gradient norm": f"norm of the gradient, mean of the last {LAST} steps"}  # fmt: skip
HEAD = ("", "difference", "of", "mean of the seeds", "smallest effect", "relative", "smallest of nine")
GPU = "training_effect/gpu.csv.gz"


def blocks(tables: Tables) -> dict[str, str]:
    first, again = (_by_seed(tables.csv(f"training_effect/{name}.csv.gz")) for name in ("cpu", "cpu-again"))
    found = _differences(first)
    least = (found["least"] / found["of"]).groupby(found["what"]).max()
    errors = pd.concat([first, again], axis=1).loc["gradient error"]
    te, ring, held = errors.loc[TE] / errors.loc[ONE], errors.loc[RING] / errors.loc[ONE], first.loc["held-out loss"]
    both = _difference(pd.concat([first, again], axis=1), "loss", TE, ONE)
    second = _difference(again, "loss", TE, ONE)
    spread = (held.loc[TE] - held.loc[ONE]).std() / (held.loc[RING] - held.loc[ONE]).std()
    return {
        "effects": _table(found),
        **_gpu(tables),
        "again": markdown(
            HEAD[1:],
            [
                (f"te_p2p - one device, {name}", *_shown(each))
                for name, each in (("eight new seeds", second), ("all thirteen", both))
            ],
        ),
        "again_shown": "beyond it" if abs(second["mean"]) > second["least"] else "within it",
        "shown": _beyond(found),
        "least": f"{least['loss']:.2%} of the training loss, {least['held-out loss']:.2%} of that of other text and {least['gradient norm']:.1%} of the norm",
        "te": f"{both['least'] / both['of']:.2%} of the training loss",
        "errors": f"{span(te, '.1f')} times in te_p2p and {span(ring, '.1f')} times with float32 sums ({len(te)} seeds)",
        "error": f"{errors.loc[ONE].mean():.1e}, relatively,",
        "te_error": f"{errors.loc[TE].mean():.1e}",
        "spread": f"{spread:.1f} times",
        "seeds": f"{held.loc[ONE].std() / held.loc[ONE].mean():.1%} ({joined(held.loc[ONE], '.3f')} nats a byte)",
    }


def _gpu(tables: Tables) -> dict[str, str]:
    """The same of the size for a GPU."""
    rows = _by_seed(tables.csv(GPU))
    found, errors = _differences(rows), rows.loc["gradient error"]
    over = {way: span(errors.loc[way] / errors.loc[ONE], ".1f") for way in (TE, RING)}
    least = (found["least"] / found["of"])[found["what"] == "loss"]
    return {
        "gpu": _table(found),
        "gpu_least": f"{least.min():.2%} to {least.max():.2%} of the training loss",
        "gpu_shown": _beyond(found),
        "gpu_errors": f"{over[TE]} times in te_p2p and {over[RING]} times with float32 sums",
    }


def _differences(rows: pd.DataFrame) -> pd.DataFrame:
    """A row for each quantity and pair of ways."""
    return pd.DataFrame([
        {"what": what, "pair": f"{left} - {right}", **_difference(rows, what, left, right)}
        for what in QUANTITIES for left, right in PAIRS
    ])  # fmt: skip


def _table(found: pd.DataFrame) -> str:
    lines = [(QUANTITIES[row["what"]], row["pair"], *_shown(row)) for row in found.to_dict("records")]
    return markdown(HEAD, lines)


def _beyond(found: pd.DataFrame) -> str:
    """How many differences are beyond the smallest effect, which, and how many where all nine are allowed for."""
    beyond = found[found["mean"].abs() > found["least"]]
    corrected = found[found["mean"].abs() > found["least_of_all"]]
    which = "; ".join(f"{row.pair}, {QUANTITIES[row.what]}" for row in beyond.itertuples())
    return f"{len(beyond)} of {len(found)}{f' ({which})' if which else ''}, {len(corrected)} where nine comparisons are allowed for"


def _by_seed(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the mean of the last steps: a row for each quantity and way, a column for each seed."""
    rows = rows[rows["step"] >= rows["step"].max() - LAST]
    return rows.groupby(["what", "way", "seed"])["value"].mean().unstack("seed")


def _difference(of: pd.DataFrame, what: str, left: str, right: str) -> dict[str, float]:
    """least, least_of_all: what a mean over seeds must exceed, alone and as one of nine, at 95%."""
    each = of.loc[(what, left)] - of.loc[(what, right)]
    error, count = each.std() / len(each) ** 0.5, len(QUANTITIES) * len(PAIRS)
    least, of_all = (stdtrit(len(each) - 1, 1 - 0.025 / tests) * error for tests in (1, count))
    return {"of": of.loc[(what, right)].mean(), "mean": each.mean(), "least": least, "least_of_all": of_all}


def _shown(row: dict[str, float]) -> tuple[str, ...]:
    of, mean, least = row["of"], row["mean"], row["least"]
    return f"{of:.4f}", f"{mean:+.1e}", f"{least:.1e}", f"{least / of:.2%}", f"{row['least_of_all']:.1e}"
