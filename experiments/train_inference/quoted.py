"""Which table says each number of this README: see accuracy/report/evidence.py."""

import pandas as pd

from accuracy.report.evidence import Said, Tables

SPLITS = "https://github.com/Dao-AILab/flash-attention/blob/v2.8.3/csrc/flash_attn/flash_api.cpp"
RINGS = [f"{name}, {ranks} ranks" for name in ("zigzag", "te_p2p") for ranks in (2, 8, 64)]


def quoted(tables: Tables) -> dict[str, list[Said]]:
    rows = pd.read_csv(tables.reports / "train_inference/nvidia-h200.csv.gz")
    path = rows["path_a"].str.extract(r"(?P<name>\w+)@(?P<ranks>\d+)")
    rows["path"] = path["name"] + ", " + path["ranks"] + " ranks"
    out = rows[rows["tensor"] == "out"].set_index(["path", "dtype"])
    low, high = (out.xs(dtype, level="dtype") for dtype in ("bfloat16", "float16"))
    beyond = set(out.index[out["label"] == "beyond"])
    growth = {name: low.loc[f"{name}, 64 ranks", "drift_rel"] / low.loc[f"{name}, 2 ranks", "drift_rel"]
              for name in ("te_p2p", "zigzag")}  # fmt: skip
    equal = set(rows["path"]) - set(rows[rows["label"] != "equal"]["path"])
    gathered = {*(f"llama3_zigzag, {ranks} ranks" for ranks in (2, 8, 64)), "te_all_gather, 8 ranks"}
    heads = low.loc[["ulysses, 2 ranks", "ulysses, 8 ranks", "te_a2a, 8 ranks"]]
    half = high.loc["ulysses, 2 ranks", "drift_rel"]
    nearer = out.loc[RINGS, "nearer"].eq("b").all()
    one = out["drift_differ"].max() < 524288 and heads["drift_differ"].nunique() == 1
    return {
        "README.md": [
            Said("32 pairs, none failed", holds=len(low) + len(high) + len(_words(tables).groupby(level=[0, 1])) == 32),
            Said("elements that differ, of 524,288, bfloat16 |", holds=one),
            *(_line(name, low.loc[name], high.loc[name]) for name in RINGS),
            Said("| llama3_zigzag, 2, 8 and 64 ranks, and te_all_gather, 8 ranks | 0 | 0 | 0 | 0 | neither |",
                 holds=equal == gathered),
            Said("te_a2a, 8 ranks | {:,.0f} | {:.5f} | {:.2f} | {:.6f} | decoding |",
                 (*heads.iloc[0][["drift_differ", "drift_rel"]], _over(heads.iloc[0]), half),
                 holds=heads["nearer"].eq("b").all()),
            Said("in both dtypes. So does 10.",
                 holds=nearer and beyond == {("te_p2p, 64 ranks", dtype) for dtype in ("bfloat16", "float16")}),
            Said("te_p2p's drift grows {:.1f} times, zigzag's {:.2f} times.", tuple(growth.values())),
            Said("cuts them into as many parts of 256 as decoding does;", source=SPLITS),
            *_of_words(_words(tables)),
        ]
    }  # fmt: skip


def _over(row: pd.Series) -> float:
    return float(row["drift_rel"] / row["drift_expected"])


def _line(name: str, low: pd.Series, high: pd.Series) -> Said:
    mark = "**" if low["label"] == "beyond" else ""
    text = f"| {name} | {{:,.0f}} | {mark}{{:.5f}}{mark} | {{:.2f}} | {mark}{{:.6f}}{mark} | decoding |"
    return Said(text, (low["drift_differ"], low["drift_rel"], _over(low), high["drift_rel"]))


def _words(tables: Tables) -> pd.DataFrame:
    rows = pd.read_csv(tables.reports / "train_inference/nvidia-h200-logprobs.csv.gz")
    path = rows["path_a"].str.extract(r"(?P<name>\w+)@(?P<ranks>\d+)")
    rows["path"] = path["name"] + ", " + path["ranks"] + " ranks"
    return rows.set_index(["path", "dtype", "depth"]).sort_index()


def _of_words(words: pd.DataFrame) -> list[Said]:
    last = words.xs(32, level="depth")
    times = last["mean"].xs("bfloat16", level="dtype") / last["mean"].xs("float16", level="dtype")
    deep = last.xs("bfloat16", level="dtype").iloc[0]
    cells = [("bfloat16", 8), ("bfloat16", 32), ("float16", 32)]
    return [
        *(
            Said(
                f"| {path} | {{:.2g}} ({{:.2g}}) | {{:.2g}} ({{:.2g}}) | {{:.2g}} ({{:.2g}}) | {{:.2g}} |",
                (
                    *(words.loc[(path, *cell), name] for cell in cells for name in ("mean", "max")),
                    words.loc[(path, "bfloat16", 32), "kl"],
                ),
            )
            for path in ("zigzag, 8 ranks", "te_p2p, 2 ranks", "te_p2p, 8 ranks")
        ),
        Said(
            "bfloat16's difference is {:.1f} to {:.1f} times float16's, and no ratio is outside [0.8, 1.2] in either.",
            (times.min(), times.max()),
            holds=words["outside"].eq(0).all(),
        ),
        Said(
            "in bfloat16 is {:.2g}, what the rest of the model has with exact attention {:.2g}.",
            (deep["error_b"], deep["rest"]),
        ),
    ]
