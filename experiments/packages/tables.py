"""The numbers of README.md and FINDINGS.md, from the published tables."""

import pandas as pd

from accuracy.package.installed import OURS
from experiments.claim import beside, half_interval
from experiments.published import TENSORS, Tables, chosen, markdown

TABLE, UNFUSED, FOUR_GPUS = "packages/nvidia-h200-x2", "packages/nvidia-h200-x2-unfused", "packages/nvidia-h200-x4"
RINGS, OTHERS = r"(?:ring_flash_attn|yunchang)_ring", r"(?:ring_flash_attn|yunchang)_(?:zigzag|stripe)"
PUBLISHED = (  # package, variants, dtypes; of which variants and dtypes
    ("ring-flash-attn 0.1.8, yunchang 0.6.4", "ring", "bf16", RINGS, "bfloat16"),
    ("", "", "fp16", RINGS, "float16"),
    ("", "", "fp32", RINGS, "float32"),
    ("", "zigzag, stripe", "16 bit", OTHERS, "b?float16"),
    ("", "", "fp32", OTHERS, "float32"),
    ("torch 2.11 context parallelism", "all-gather, all-to-all, balanced or not", "all", "torch_.*", ".*"),
    ("ring-attention-pytorch 0.5.20", "ring, striped", "fp32", "ring_attention_.*", "float32"),
    ("axolotl-ringmaster 0.2.7", "ring, all-gather, zigzag, DistFlash", "fp32", "ringmaster_.*", "float32"),
)
FAULT = 2.0  # times our error: printed in bold


def blocks(tables: Tables) -> dict[str, str]:
    rows = _beside_ours(tables.rows(TABLE))
    real = rows[rows["world_size"] > 1]
    torch, unfused = rows[rows["variant"].str.startswith("torch_")]["ratio"], _beside_ours(tables.rows(UNFUSED))
    unfused = unfused[unfused["variant"].str.fullmatch(f"{RINGS}|{OTHERS}")]
    wrong = (unfused["dtype"] == "float32") & unfused["tensor"].isin(TENSORS[1:]) & (unfused["world_size"] > 1)
    cast = unfused["variant"].str.fullmatch(RINGS) & (unfused["tensor"] == "dq") & (unfused["dtype"] != "bfloat16")
    right = unfused[~wrong & ~cast]["ratio"]
    packed = chosen(rows, variant="ring_flash_attn_llama3", kernel="flash_attn").groupby("tensor")["ratio"]
    packed = packed.agg(["min", "max"]).sub(1).abs().max(axis=1)
    master = rows[rows["variant"].str.startswith("ringmaster_") & (rows["dtype"] == "float32")]
    dkv = chosen(master, tensor=["dk", "dv"]).groupby("world_size")["ratio"].agg(["min", "max"])
    ringmaster = [f"ringmaster_{name}" for name in ("ring", "zigzag", "distflash")]
    where = {"dtype": "bfloat16", "kernel": "flash_attn", "precision": "", "variant": ringmaster}
    worst = tables.worst_rank(TABLE, ("world_size", "variant"), **where).unstack()[ringmaster]
    cases = tables.rows(TABLE).drop_duplicates("case_id")["status"].value_counts()
    over_nccl = chosen(_beside_ours(tables.rows(FOUR_GPUS)), dtype="float32", tensor=["dk", "dv"], world_size=4)
    over_nccl = over_nccl[over_nccl["variant"].str.fullmatch(OTHERS)]["ratio"]
    fused = rows[rows["variant"].str.fullmatch(f"{RINGS}|{OTHERS}") & (rows["dtype"] != "float32")]
    fused = fused[fused["tensor"].isin(TENSORS) & ((fused["tensor"] != "dq") | ~fused["variant"].str.fullmatch(RINGS))]
    theirs = real[real["variant"].str.startswith("ring_attention_")]  # its torch products take float32 alone
    wrong_dkv = chosen(theirs, dtype="float32", tensor=["dk", "dv"]).groupby("tensor")["ratio"].max()
    dq = _dq_over_ours(tables.rows(TABLE))
    return {
        **_their_tests(tables.csv("their_tests/tests.csv").fillna("")),
        "cases": f"{cases['ok']:,} cases measured, {cases['failed']} failed, {cases['unsupported']} unsupported",
        **_seeds(chosen(real, tensor=TENSORS)),
        "beside": markdown(
            ("package, version", "variants", "dtype", *TENSORS),
            ((*names, *_largest(real, variants, dtypes)) for *names, variants, dtypes in PUBLISHED),
        ),
        "torch": f"{(torch == 1).sum()} of torch's {len(torch)} rows agree in every digit",
        "fused": f"by at most {fused['ratio'].sub(1).abs().max():.2%} of an error",
        "over_nccl": f"{over_nccl.min():.1e} to {over_nccl.max():.1e} times ours".replace("e+0", "e"),
        "unfused": f"{(right == 1).sum()} of the {len(right)} rows of their ring, zigzag and stripe that neither fault below touches agree in every digit",
        "packed": f"whose lse has up to {1 + packed['lse']:.2f} times the error at the float32 floor and whose out and"
        f" gradients differ by {packed[TENSORS].max():.1%}",
        "wrong_dkv": f"{_short(wrong_dkv['dk'])} (dk), {_short(wrong_dkv['dv'])} (dv) times".replace("**", ""),
        "cast": f"{dq:.1f} times our error",
        "master": "{:.2f}, {:.2f} and {:.2f} times single device's".format(*worst.loc[4])
        + f", on that of 2 ranks at most {worst.loc[2].max():.2f}",
        "master_rings": "the ring has {:.2f} times, zigzag {:.2f} times single device's error".format(*worst.loc[4]),
        "alone": f"{dkv['min'][1]:.1f} to {dkv['max'][1]:.1f} times our error at one rank, up to {dkv['max'][2]:.2f} times at"
        f" 2, and at 4 the same to {(dkv.loc[4] - 1).abs().max():.0%}",
    }


def _beside_ours(rows: pd.DataFrame) -> pd.DataFrame:
    return beside(rows[(rows["rank"] == -1) & rows["tensor"].notna() & (rows["status"] == "ok")], OURS)


def _seeds(rows: pd.DataFrame) -> dict[str, str]:
    """How much a ratio differs between seeds, and the cases of the float32 fault that timing decides."""
    each = rows.groupby(["variant", "kernel", "dtype", "world_size", "tensor"])["ratio"]
    least, mean, largest = (each.agg(how) for how in ("min", "mean", "max"))
    half = half_interval(each)
    dv = chosen(rows, dtype="float32", tensor="dv", world_size=2)
    dv = dv[dv["variant"].str.fullmatch(OTHERS)]["ratio"]
    return {
        "halves": f"at most {half[largest < FAULT].max():.2f}, and {(half / mean)[least >= FAULT].max():.0%} of what is bold",
        "raced": f"{(dv >= FAULT).sum()} of {len(dv)} cases",
    }


def _largest(rows: pd.DataFrame, variants: str, dtypes: str) -> list[str]:
    rows = rows[rows["variant"].str.fullmatch(variants) & rows["dtype"].str.fullmatch(dtypes)]
    return [_short(each) for each in rows.groupby("tensor")["ratio"].max()[TENSORS]]


def _short(ratio: float) -> str:
    text = f"{ratio:.1e}".replace("e+0", "e") if ratio >= 1000 else f"{ratio:.{2 if ratio < FAULT else 1}f}"
    return f"**{text}**" if ratio >= FAULT else text


def _dq_over_ours(rows: pd.DataFrame) -> float:
    """The largest error of the packages' dq in float16, on flash-attn itself, over that of our ring."""
    dq = chosen(rows, dtype="float16", tensor="dq", rank=-1, kernel="flash_attn")
    errors = dq[dq["world_size"] > 1].groupby(["world_size", "variant"])["error_rel"].mean().unstack("variant")
    return float(errors[["ring_flash_attn_ring", "yunchang_ring"]].div(errors["ring"], axis=0).to_numpy().max())


def _their_tests(rows: pd.DataFrame) -> dict[str, str]:
    """Each test of a project: what it does as published, and which planted faults it passes and fails."""
    lines, zero = [], rows[rows["planted"] == "gradients of zero"]
    for (project, test, words), each in rows.groupby(["project", "test", "arguments"], sort=False):
        as_is, faults = each[each["planted"] == ""], each[each["planted"] != ""]
        result = "passes" if (as_is["exit"] == 0).all() else f"fails: {as_is['said'].iloc[0]}"
        kinds = (", ".join(faults[(faults["exit"] == 0) == passed]["planted"]) for passed in (True, False))
        lines.append((project, f"`{f'{test} {words}'.strip()}`", each["ranks"].iloc[0], result, *kinds))
    passed = zero.groupby("project", sort=False)["exit"].agg([lambda found: (found == 0).sum(), "size"])
    return {
        "their_tests": markdown(("project", "its test", "ranks", "as published", "passes with", "fails with"), lines),
        "their_zero": "; ".join(f"{project}: {n} of {of}" for project, n, of in passed.itertuples()),
    }
