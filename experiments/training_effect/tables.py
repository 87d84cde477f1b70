"""The numbers of README.md, from the published table."""

import pandas as pd
from scipy.special import stdtrit

from experiments.published import Tables, chosen, joined, markdown

ONE, RING, TE = "one device", "ring, float32 sums", "te_p2p"
PAIRS = ((TE, ONE), (TE, RING), (RING, ONE))
LAST = 100
QUANTITIES = {"loss": f"loss, mean of the last {LAST} steps", "held-out loss": "loss of other text",
              "gradient norm": f"norm of the gradient, mean of the last {LAST} steps"}  # fmt: skip


def blocks(tables: Tables) -> dict[str, str]:
    rows = tables.csv("training_effect/cpu.csv.gz")
    rows = rows[rows["step"] >= rows["step"].max() - LAST]
    of = rows.groupby(["what", "way", "seed"])["value"].mean().unstack("seed")
    lines, shown, smallest = [], [], []
    for what, said in QUANTITIES.items():
        for left, right in PAIRS:
            each = of.loc[what, left] - of.loc[what, right]
            half = stdtrit(len(each) - 1, 0.975) * each.std() / len(each) ** 0.5
            value = of.loc[what, right].mean()
            shown += [f"{left} against {right} in the {said}"] * bool(abs(each.mean()) > half)
            smallest.append((what, half / value))
            lines.append(
                (said, f"{left} - {right}", f"{value:.4f}", f"{each.mean():+.1e}", f"{half:.1e}", f"{half / value:.4%}")
            )
    least = pd.DataFrame(smallest, columns=["what", "share"]).groupby("what")["share"].max()
    errors = of.loc["gradient error"]
    ratios = {way: errors.loc[way] / errors.loc[ONE] for way in (RING, TE)}
    spread = {way: (of.loc["held-out loss", way] - of.loc["held-out loss", ONE]).std() for way in (TE, RING)}
    return {
        "effects": markdown(("", "difference", "of", "mean of the seeds", "smallest effect", "relative"), lines),
        "shown": "; ".join(shown) or "none",
        "least": f"{least['loss']:.3%} of the training loss, {least['held-out loss']:.3%} of that of other text and {least['gradient norm']:.2%} of the norm",
        "errors": markdown(
            ("error of the whole gradient over one device's", *errors.columns),
            [(way, *(f"{x:.2f}" for x in ratio)) for way, ratio in ratios.items()],
        ),
        "error": f"{errors.loc[ONE].mean():.1e} of the gradient on one device",
        "spread": f"{spread[TE] / spread[RING]:.1f} times",
        "seeds": f"{chosen(rows, what='held-out loss', way=ONE)['value'].std() / of.loc['held-out loss', ONE].mean():.1%} ({joined(of.loc['held-out loss', ONE], '.3f')} nats a byte)",
    }
