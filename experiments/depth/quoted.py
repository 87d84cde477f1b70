"""Which table says each number: see accuracy/report/evidence.py."""

import runpy
from pathlib import Path

import pandas as pd

from accuracy.report.evidence import Said, Tables, lines

SMALL, LLAMA, LARGEST = "depth/nvidia-h200", "depth/nvidia-h200-llama-8b", "depth/nvidia-h200-llama-405b"
CLAIMS = runpy.run_path(str(Path(__file__).with_name("claims.py")))
GRADIENTS, RINGS, ADDED = CLAIMS["GRADIENTS"], ["ring", "zigzag", "llama3_ring"], "(Added after the run.) "
ERRORS = ["error_rel", "single_device_rel", "exact_rel", "diff_rel"]
STACKS = {SMALL: ("small, {} layers", ""), LLAMA: ("8B, {} layers", ".2f"), LARGEST: ("405B heads, {} layers", ".2f")}


def quoted(tables: Tables) -> dict[str, list[Said]]:
    rows = {name: _rows(tables, name) for name in STACKS}
    usual = {name: each[(each["gain"] == 1) & (each["weights"] == "random")] for name, each in rows.items()}
    largest = rows[LARGEST][(rows[LARGEST]["gain"] == 1) & rows[LARGEST]["tensor"].str.startswith("d_")]
    means = largest.groupby(["variant", "world_size"])["x_single_device"].mean()
    finding = "ring, zigzag and llama3_ring have {:.2f} to {:.2f} times single device's error."
    return {
        "../FINDINGS.md": [Said(finding, (means.min(), means.max()))],
        "README.md": [
            Said("stays within 1.25 times the single-device stack's error.", holds=all(tables.answer(SMALL))),
            *(
                Said(text, (tables.cases(name)["ok"], *seconds), holds=not tables.cases(name)["failed"])
                for name, text, seconds in (
                    (SMALL, "{} stacks, none failed;", ()),
                    (LLAMA, "({} stacks, {:.0f} s;", (tables.seconds(LLAMA),)),
                    (LARGEST, "({} stacks, {:.0f} s;", (tables.seconds(LARGEST),)),
                )
            ),
            *_table(usual),
            *_rounding(tables, rows[SMALL], usual),
            *_sharp(tables, rows),
            *_bug(tables),
            *_policies(tables),
            *_predictions(tables),
        ],
    }


def _rows(tables: Tables, name: str) -> pd.DataFrame:
    """Published rings in bfloat16, with norms and a residual stream in the input's dtype."""
    rows = tables.rows(name)
    rows = rows[(rows["status"] == "ok") & (rows["dtype"] == "bfloat16") & (rows["precision"] == "") & rows["norm"]]
    return rows[rows["variant"].isin(RINGS) & (rows["residual"] == "input")]


def _gradients(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["tensor"].isin(GRADIENTS)]


def _medians(rows: pd.DataFrame) -> pd.DataFrame:
    """Of all gradients of all layers on 8 ranks."""
    return _gradients(rows[rows["world_size"] == 8]).groupby(["layers", "variant"])[ERRORS].median()


def _table(usual: dict[str, pd.DataFrame]) -> list[Said]:
    table = {}
    for name, (head, spec) in STACKS.items():
        rows = usual[name][usual[name]["world_size"].isin([4, 8])]
        medians = _medians(rows)
        loss = rows[rows["tensor"] == "loss"].groupby("layers")["error_rel"].max()
        most = _gradients(rows).groupby("layers")["x_single_device"].max()
        for layers in sorted(loss.index):
            ring, other = medians.loc[(layers, "ring")], medians.loc[(layers, "llama3_ring")]
            cells = [ring["error_rel"], other["error_rel"], *ring[ERRORS[1:]]]
            said = [f"{loss[layers]:.0e}".replace("e-0", "e-"), format(most[layers], spec) if spec else ""]
            table[head.format(layers)] = [*cells, *said]
    return lines(table, ".4f")


def _rounding(tables: Tables, small: pd.DataFrame, usual: dict[str, pd.DataFrame]) -> list[Said]:
    rows = tables.rows(SMALL)
    trained = _medians(small[(small["gain"] == 1) & (small["weights"] == "trained")]).xs("ring", level="variant")
    wide = rows[(rows["residual"] == "accumulate") & (rows["variant"] == "ring") & (rows["weights"] == "random")]
    wide = _gradients(wide[wide["world_size"] == 8])[ERRORS[:3]].median()
    most = _gradients(usual[LARGEST])["x_single_device"].max()
    slopes = tables.claimed(SMALL, "The bottom gradient", r"single_device L\^([\d.]+), exact L\^([\d.]+)")
    pattern = r"difference ([\d.]+) of the ring's, times single device ([\d.]+)"
    nearer = [tables.claimed(name, f"{ADDED}llama3's forward", pattern) for name in STACKS]
    return [
        Said("is within {:.0%} of single device's.", (most - 1,)),
        Said("{:.2f}, {:.2f}): the rest of the stack", slopes),
        Said("{:.3f} against {:.3f} with 8 layers, and {:.3f} against {:.3f} with 32.",
             tuple(trained.loc[[8, 32], ["error_rel", "single_device_rel"]].to_numpy().ravel())),
        Said("lowers all three to {:.3f} with 32 layers;", (wide.max(),), holds=wide.max() - wide.min() < 0.001),
        Said("{:.2f} times from 2 to 8 ranks, its error {:.2f} times;",
             tables.claimed(SMALL, f"{ADDED}From 2 to 8 ranks", r"difference times ([\d.]+), error times ([\d.]+)")),
        Said("yet {:.2f} of the ring's error.", nearer[0][1:], holds=0.45 < nearer[0][0] < 0.55),
        Said("llama3_ring's is {:.2f} and {:.2f} of the ring's,", (nearer[1][0], nearer[2][0])),
    ]  # fmt: skip


def _sharp(tables: Tables, rows: dict[str, pd.DataFrame]) -> list[Said]:
    def at(name: str, gain: float, weights: str = "random") -> pd.DataFrame:
        return rows[name][(rows[name]["gain"] == gain) & (rows[name]["weights"] == weights)]

    middle = pd.concat([_gradients(at(name, 4)).groupby("layers")[ERRORS].median() for name in STACKS])
    loss = {kind: at(SMALL, 4, kind).query("tensor == 'loss'")["error_rel"] for kind in ("random", "trained")}
    twice = _gradients(at(LLAMA, 2).query("layers == 32"))[ERRORS[:3]].median()
    pattern = r"^(\d+) gradients; ring's difference is ([\d.]+) times exact's, at most ([\d.]+)"
    (many, eight, most), (more, large, larger) = (
        tables.claimed(name, "Wherever a pub", pattern) for name in (LLAMA, LARGEST)
    )
    fine = tables.rows(SMALL).query("variant == 'ring' and gain == 4")
    fine = _gradients(fine).groupby("dtype")["error_rel"].max()
    cosine = _gradients(at(LARGEST, 4))["cosine"].median()
    exact = _gradients(at(LARGEST, 1).query("world_size == 8 and variant == 'ring'"))[ERRORS].median()
    return [
        Said("the error of the gradients is {:.1f} to {:.1f} times their size,",
             (middle[ERRORS[:3]].min(axis=None), middle[ERRORS[:3]].max(axis=None))),
        Said("the loss is off by at most {:.1%} with random weights and {:.1%} with trained ones",
             tuple(each.max() for each in loss.values())),
        Said("(one seed; means {:.1%} and {:.1%}).", tuple(each.mean() for each in loss.values())),
        Said("32 layers is already {:.2f} in all three.", (twice["error_rel"],), twice.max() - twice.min() < 0.05),
        Said("differ by as much ({:.1f}),", (middle["diff_rel"].iloc[1:].mean(),)),
        Said("in {:,.0f} and {:,.0f} gradients", (many, more)),
        Said("is {:.2f} and {:.2f} times exact's, at most {:.2f}.", (eight, large, max(most, larger))),
        Said("is {:.3f}, in float64 {:.0e}:", (fine["float32"], fine["float64"])),
        Said("Stacks without residual (32 layers) or norms (4) behave"),
        Said("(median cosine {:.3f}, errors near the square root of 2), so that no ratio but 1", (abs(cosine),)),
        Said("has {:.4f} of the {:.4f}.", (exact["exact_rel"], exact["single_device_rel"])),
    ]  # fmt: skip


def _bug(tables: Tables) -> list[Said]:
    rows = tables.rows(SMALL)
    rows = rows[(rows["variant"] == CLAIMS["STALE"]) & (rows["dtype"] == "bfloat16")]
    errors = _gradients(rows).groupby(["weights", "world_size"])["error_rel"].median()
    loss = rows[rows["tensor"] == "loss"].groupby("weights")["error_rel"].max()
    return [
        Said("{:.3f} at 1 rank, {:.2f} at 2, {:.2f} at 4, {:.1f} at 8, with the loss right to {:.0e}",
             (*errors["random"], loss["random"])),
        Said("(trained weights: {:.3f}, {:.2f}, {:.1f}, {:.1f}; loss {:.0e})", (*errors["trained"], loss["trained"])),
        Said("depends on ring sizes of 4 or 8 as"),
    ]  # fmt: skip


def _policies(tables: Tables) -> list[Said]:
    rows = tables.rows(SMALL).query("gain == 1 and variant == 'ring' and world_size == 8 and layers == 8")
    rows = rows[(rows["dtype"] == "bfloat16") & rows["norm"] & (rows["residual"] == "input")]
    medians = _gradients(rows).groupby(["precision", "weights"])["x_single_device"].median().unstack()
    low = medians.loc["lse=bfloat16"]
    sums = medians[medians.index.str.contains("accumulator=bfloat16|lse=float16")].max()
    return [
        Said("costs a factor {:.2f} (random) or {:.1f} (trained)", tuple(low)),
        Said("at most {:.2f} and {:.2f}, where the ring itself has {:.2f} and {:.2f}.", (*sums, *medians.loc[""])),
    ]


def _predictions(tables: Tables) -> list[Said]:
    most = tables.claimed(SMALL, "Published policies at gain 1", r"largest ([\d.]+)")
    means = tables.claimed(SMALL, f"{ADDED}Over seeds", r"^([\d.]+) to ([\d.]+)")
    (loss,), (low,) = (
        tables.claimed(SMALL, "Gain 8", r"loss ([\d.]+)$"),
        tables.claimed(SMALL, "lse in bf", r"loss ([\d.]+)$"),
    )
    (grows,) = tables.claimed(SMALL, f"{ADDED}From 2 to 8 ranks", r"difference times ([\d.]+)")
    return [
        Said("pass 1.5 times single device's with trained weights"),
        Said("({:.2f} at most, means over layers and seeds {:.2f} to {:.2f}):", (*most, *means)),
        Said("Single device passes 1.5 times exact for the same reason ({:.2f}).",
             tables.claimed(SMALL, "The single-device stack's", r"largest ([\d.]+)")),
        Said("At gain 8 the loss is off by {:.0%}.", (loss,)),
        Said("fails by its loss ({:.1%})", (low,)),
        Said("(30% more at 8 ranks than at 2) fails with {:.0%},", (grows - 1,)),
        Said("agree in the middle ({:.2f}),", tables.claimed(SMALL, "Wherever a pub", r"difference is ([\d.]+)")),
    ]  # fmt: skip
