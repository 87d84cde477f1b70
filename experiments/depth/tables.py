"""The numbers of README.md and FINDINGS.md, from the published tables."""

import runpy
from pathlib import Path

import pandas as pd

from experiments.claim import half_interval
from experiments.published import Tables, chosen, markdown, span

SMALL, LLAMA, LARGEST = "depth/nvidia-h200", "depth/nvidia-h200-llama-8b", "depth/nvidia-h200-llama-405b"
CLAIMS = runpy.run_path(str(Path(__file__).with_name("claims.py")))
GRADIENTS, RINGS = list(CLAIMS["GRADIENTS"]), ["ring", "zigzag", "llama3_ring"]
CASE, ERRORS = ["variant", "world_size"], ["error_rel", "single_device_rel", "exact_rel", "diff_rel"]
STACKS = {SMALL: "small, {} layers", LLAMA: "8B, {} layers", LARGEST: "405B heads, {} layers"}


def blocks(tables: Tables) -> dict[str, str]:
    rows = {name: chosen(tables.rows(name), status="ok", dtype="bfloat16", norm=True) for name in STACKS}
    rings = {name: chosen(each, precision="", variant=RINGS, residual="input") for name, each in rows.items()}
    plain = {name: chosen(each, gain=1, weights="random") for name, each in rings.items()}
    largest = plain[LARGEST][plain[LARGEST]["tensor"].str.startswith("d_")]
    means = largest.groupby([*CASE, "seed"])["x_single_device"].mean().groupby(level=CASE)
    most = span(chosen(plain[LARGEST], tensor=GRADIENTS)["x_single_device"])
    trained = _medians(chosen(rings[SMALL], gain=1, weights="trained")).xs("ring", level="variant")
    wide = chosen(rows[SMALL], residual="accumulate", variant="ring", weights="random", world_size=8, tensor=GRADIENTS)
    sharp = {name: chosen(each, gain=4, weights="random") for name, each in rings.items()}
    middle = pd.concat([chosen(e, tensor=GRADIENTS).groupby("layers")[ERRORS].median() for e in sharp.values()])
    losses = [
        chosen(rings[SMALL], gain=4, weights=kind, tensor="loss")["error_rel"].max() for kind in ("random", "trained")
    ]
    policies = chosen(rows[SMALL], gain=1, variant="ring", world_size=8, layers=8, residual="input", tensor=GRADIENTS)
    policies = policies.groupby(["precision", "weights"])["x_single_device"].median().unstack()
    sums = policies[policies.index.str.contains("accumulator=bfloat16|lse=float16")].max()
    return {
        "rings": f"{span(means.mean())} times single device's error (half a 95% interval over seeds: at most {half_interval(means).max():.3f})",
        **{name: f"{chosen(tables.rows(of), status='ok')['case_id'].nunique()} stacks"
           for name, of in (("small", SMALL), ("llama", LLAMA), ("largest", LARGEST))},
        "table": _table(plain),
        "most": f"{most} times single device's error",
        "trained": "{:.3f} against {:.3f} with 8 layers, and {:.3f} against {:.3f} with 32".format(
            *trained.loc[[8, 32], ["error_rel", "single_device_rel"]].to_numpy().ravel()
        ),
        "wide": f"{wide[ERRORS[:3]].median().max():.3f} with 32 layers",
        "sharp": f"the error of the gradients is {span(middle[ERRORS[:3]].to_numpy().ravel(), '.1f')} times their size",
        "loss": f"at most {losses[0]:.1%} with random weights and {losses[1]:.1%} with trained ones",
        "bug": _bug(chosen(tables.rows(SMALL), variant=CLAIMS["STALE"], dtype="bfloat16")),
        "policies": "costs a factor {:.2f} (random) or {:.1f} (trained) over single device at 8 ranks, sums of gradients in bfloat16, float16 lse and bfloat16 out at most {:.2f} and {:.2f}, where the ring itself has {:.2f} and {:.2f}".format(
            *policies.loc["lse=bfloat16"], *sums, *policies.loc[""]
        ),
        **{name: tables.claims(of) for name, of in (("claims", SMALL), ("claims_llama", LLAMA), ("claims_largest", LARGEST))},
    }  # fmt: skip


def _medians(rows: pd.DataFrame) -> pd.DataFrame:
    """Of all gradients of all layers on 8 ranks."""
    return chosen(rows, tensor=GRADIENTS, world_size=8).groupby(["layers", "variant"])[ERRORS].median()


def _table(plain: dict[str, pd.DataFrame]) -> str:
    lines = []
    for name, title in STACKS.items():
        rows = chosen(plain[name], world_size=[4, 8])
        medians, loss = _medians(rows), chosen(rows, tensor="loss").groupby("layers")["error_rel"].max()
        most = chosen(rows, tensor=GRADIENTS).groupby("layers")["x_single_device"].max()
        for layers in sorted(loss.index):
            ring, other = medians.loc[(layers, "ring")], medians.loc[(layers, "llama3_ring")]
            errors = [ring["error_rel"], other["error_rel"], *ring[ERRORS[1:]]]
            above = "" if name == SMALL else f"{most[layers]:.2f}"
            most_loss = f"{loss[layers]:.0e}".replace("e-0", "e-")
            lines.append((title.format(layers), *(f"{each:.4f}" for each in errors), most_loss, above))
    head = ("stack", "ring", "llama3_ring", "single device", "exact attention", "ring - single device", "loss, at most")
    return markdown((*head, "most over single device"), lines)


def _bug(rows: pd.DataFrame) -> str:
    errors = chosen(rows, tensor=GRADIENTS).groupby(["weights", "world_size"])["error_rel"].median()
    loss = chosen(rows, tensor="loss").groupby("weights")["error_rel"].max()
    return "{:.3f} at 1 rank, {:.2f} at 2, {:.2f} at 4, {:.1f} at 8, with the loss right to {:.0e}".format(
        *errors["random"], loss["random"]
    ) + " (trained weights: {:.3f}, {:.2f}, {:.1f}, {:.1f}; loss {:.0e})".format(*errors["trained"], loss["trained"])
