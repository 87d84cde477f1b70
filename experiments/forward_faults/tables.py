"""The numbers of README.md and FINDINGS.md, from the published extract."""

import runpy
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.published import Tables, chosen, markdown

CLAIMS = runpy.run_path(str(Path(__file__).with_name("claims.py")))
RATIO, HEALTHY = CLAIMS["_ratio"], ["ring", "llama3_ring", "te_p2p"]
NAMES = [*HEALTHY, "merge_overflow"]
LOGITS = {0.25: "1/16 (gain 0.25)", 1: "as drawn (gain 1)", 2: "4 times (gain 2)"}


def blocks(tables: Tables) -> dict[str, str]:
    rows = tables.csv("forward_faults/gradients.csv.gz")
    rows["x_single_device"] = rows["error_rel"] / rows["single_device_rel"]
    trained, long, deep = (rows[rows["seqlen"] == size] for size in (2080, CLAIMS["LONG"], 128))
    alone = chosen(long, tensor="dx")
    visible, hidden = RATIO(alone, "te_p2p"), RATIO(alone, "ring")
    healthy = chosen(long, variant=HEALTHY, tensor=list(CLAIMS["GRADIENTS"]))
    deep = deep[deep["tensor"] == "d_query"].groupby(["gain", "layers"])
    deep = deep[["diff_rel", "exact_diff_rel", "single_device_rel"]].median()
    more = [max(RATIO(each, "ring")[2] for each in (trained, long)) - 1, *(_more(each) for each in (trained, long))]
    return {
        "adds": f"at 8 ranks it adds {RATIO(trained, 'ring')[0] - 1:.1%}",
        "ring": f"a ring at 8 ranks adds {more[1]} to the error of single device's gradients",
        "long_ring": f"{more[2]} at 16,416 tokens",
        "ratios": _ratios(trained),
        "power": f"{_half(trained, 'ring'):.0%} of a gradient's error for ring and {_half(trained, 'te_p2p'):.0%} for te_p2p",
        "exact": f"{_exact(trained):.0%} of single device's squared error",
        "faults": _faults(trained),
        "long": _ratios(long),
        "healthy": f"within {healthy['error_rel'].max():.3f} of its reference",
        "long_power": "{:.0%} for ring, {:.0%} for llama3_ring and {:.0%} for te_p2p".format(
            *(_half(long, name) for name in HEALTHY)
        ),
        "alone": "{:.0%}, {:.0%} and {:.0%}; there te_p2p is visible, at {:.3f} ({:.3f} to {:.3f}), ring at {:.3f}".format(
            *(_half(alone, name) for name in HEALTHY), *visible, hidden[0]
        )
        + " is not",
        "long_faults": _long_faults(long),
        "deep": markdown(
            ("logits", "layers", "ring", "exact attention", "error of single device"),
            (
                (name, "24, 128", *(", ".join(f"{each:.{2 if gain == 2 else 3}f}" for each in deep.loc[gain][column])
                                    for column in deep))
                for gain, name in LOGITS.items()
            ),
        ),
        "sharp": "{:.2f} at 24 layers and by {:.2f} at 128".format(*deep.loc[2, "exact_diff_rel"]),
        "smaller": f"{deep.loc[(2, 24), 'exact_diff_rel'] / deep.loc[(1, 24), 'exact_diff_rel']:.0f} times smaller",
        "most": f"it adds at most {more[0]:.0%} to the gradients' error at 2,080 and 16,416 tokens",
    }  # fmt: skip


def _more(rows: pd.DataFrame) -> str:
    return "{:.1%} ({:.1%} to {:.1%})".format(*(each - 1 for each in RATIO(rows, "ring")))


def _half(rows: pd.DataFrame, name: str) -> float:
    """The smallest effect that can be seen: half an interval."""
    mean, _, high = RATIO(rows, name)
    return high / mean - 1


def _exact(rows: pd.DataFrame) -> float:
    rows = chosen(rows, variant=HEALTHY, tensor=list(CLAIMS["GRADIENTS"]))
    return float(np.exp(np.log(rows["exact_rel"] / rows["single_device_rel"]).mean()) ** 2)


def _ratios(rows: pd.DataFrame) -> str:
    by = [rows, *(chosen(rows, tensor=each) for each in ("d_query", "d_value"))]
    lines = []
    for name in NAMES:
        all_, query, value = (RATIO(each, name) for each in by)
        said = "{:.3f} ({:.3f} to {:.3f})".format(*all_)
        does = " (does not execute)" if name == "merge_overflow" else ""
        lines.append((name + does, said, f"{query[0]:.3f}", f"{value[0]:.3f}"))
    return markdown(("", "all gradients", "d_query", "d_value"), lines)


def _faults(rows: pd.DataFrame) -> str:
    loss, bottom = (
        chosen(rows, tensor=name).set_index(["variant", "world_size"]).sort_index() for name in ("loss", "bottom dx")
    )
    padded, own, ring = (sorted(loss["error_rel"][name, 8]) for name in ("lse_padded", "partial_lse", "ring"))
    most = {name: int(np.log10(bottom["error_rel"][name, 8].max())) for name in ("lse_padded", "partial_lse")}
    one = bottom["x_single_device"]["partial_lse", 1].max()
    return markdown(
        ("", "gradient (dx of layer 1)", "error of the loss"),
        (
            ("merge_overflow at gain 8", "not finite", "not finite: seen at once"),
            (
                "lse read beside its padding",
                f"10^{most['lse_padded']} of it",
                f"{padded[0]:.3%} to {padded[-1]:.1%}, four of five seeds within {padded[-2]:.1%}",
            ),
            (
                "a rank's own lse kept for the backward",
                f"10^{most['partial_lse']} of it",
                f"at most {own[-1]:.3%}, a ring's {ring[-1]:.3%}: not seen in the loss",
            ),
            ("the same on one rank", f"{one:.2f} times single device", ""),
        ),
    )


def _long_faults(rows: pd.DataFrame) -> str:
    """The gradients of the top and the bottom layer, median of the seeds, and the loss."""
    loss = chosen(rows, tensor="loss").pivot_table(index="seed", columns="variant", values="error_rel")
    layers = chosen(rows, tensor="dx of the layer")
    layers = layers.assign(layer=layers["layer"].astype(int)).set_index(["variant", "layer", "seed"])["error_rel"]
    own, padded = (layers[name].groupby("layer").median() for name in ("partial_lse", "lse_padded"))
    broken = ~np.isfinite(layers["lse_padded"].unstack("layer")[1])
    of_padded = loss["lse_padded"]
    equal = "a ring's own loss in all digits" if (loss["partial_lse"] == loss["ring"]).all() else "not a ring's loss"
    return markdown(
        ("fault, 16,416 tokens", "dx of layer 8 (top)", "dx of layer 1", "from layer to layer", "error of the loss"),
        (
            (
                "a rank's own lse",
                _power(own[8]),
                _power(own[1]),
                f"10^{np.log10(own[1] / own[8]) / 7:.1f} times",
                f"at most {loss['partial_lse'].max():.3%}, {equal}",
            ),
            (
                "lse beside its padding",
                _power(padded[8]),
                f"not finite in {broken.sum()} of {len(broken)} seeds",
                f"10^{np.log10(padded[3] / padded[8]) / 5:.1f} times (layers 8 to 3)",
                f"{of_padded.min():.1%} to {of_padded.max():.1%}",
            ),
        ),
    )


def _power(number: float) -> str:
    return f"{number:.1e} of it".replace("e+0", "e").replace("e+", "e")
