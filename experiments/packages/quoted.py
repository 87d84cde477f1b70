"""Which table says each number: see accuracy/report/evidence.py."""

import pandas as pd

from accuracy.package.twins import OURS
from accuracy.report.evidence import Said, Tables, lines
from accuracy.results.claim import beside

TWO, UNFUSED = "packages/nvidia-h200-x2", "packages/nvidia-h200-x2-unfused"
RINGS, OTHERS = r"(?:ring_flash_attn|yunchang)_ring", r"(?:ring_flash_attn|yunchang)_(?:zigzag|stripe)"
TABLE, ZIGZAG, LLAMA3 = "packages/nvidia-h200-x4", "te_growth/nvidia-h200", "thousand_ranks/nvidia-h200"


def quoted(tables: Tables) -> dict[str, list[Said]]:
    real, of_two = tables.worst_rank(TABLE, 4), tables.worst_rank(TABLE, 2)
    master = [f"ringmaster_{name}" for name in ("ring", "zigzag", "distflash")]
    told = tuple(real[name] for name in master)
    zigzag, llama3 = tables.worst_rank(ZIGZAG, 64)["zigzag"], tables.worst_rank(LLAMA3, 64)["llama3"]
    balanced = real["torch_context_parallel_allgather_balanced"]
    published = [real["ring_flash_attn_zigzag"], real["yunchang_zigzag"]]
    return {
        "../../README.md": [
            Said("context parallelism, balanced | {:.2f} (4 ranks) | {:.2f} |", (balanced, zigzag)),
            Said(
                "and yunchang 0.6.4, zigzag | {:.2f} (4 ranks) | {:.2f} |",
                (max(published), zigzag),
                holds=round(min(published), 2) == round(max(published), 2),
            ),
            Said("llama3: dk, dv | {:.2f} (4 ranks) | {:.2f} |", (real["ring_flash_attn_llama3"], llama3)),
            Said("| axolotl-ringmaster 0.2.7, peer-to-peer ring | {:.2f} (4 ranks) |", told[:1]),
            Said("| axolotl-ringmaster 0.2.7, zigzag | {:.2f} (4 ranks) |", told[1:2]),
            Said("their ring's dq to bfloat16 ({:.1f} times our error)", (_dq_over_ours(tables.rows(TABLE)),)),
        ],
        "../FINDINGS.md": [
            Said("their ring's dq to bfloat16: {:.1f} times our error.", (_dq_over_ours(tables.rows(TABLE)),)),
            Said("on the worst of 4 ranks the ring has {:.2f} times, zigzag {:.2f} times single", told[:2]),
        ],
        "README.md": [
            *_table(tables),
            *_prose(tables),
            Said(
                "is {:.2f}, {:.2f} and {:.2f} times single device's, on that of 2 ranks {:.2f} in each",
                (*told, max(of_two[master])),
                holds=of_two[master].round(2).nunique() == 1,
            ),
        ],
    }


def _table(tables: Tables) -> list[Said]:
    rows = beside(tables.whole(TABLE), OURS)
    rows = rows[rows["world_size"] > 1]

    def worst(variants: str, dtypes: str) -> list[str]:
        chosen = rows[rows["variant"].str.fullmatch(variants) & rows["dtype"].str.fullmatch(dtypes)]
        return [_short(each) for each in chosen.groupby("tensor")["ratio"].max()[["out", "dq", "dk", "dv"]]]

    return lines(
        {
            "ring-flash-attn 0.1.8, yunchang 0.6.4 | ring | bf16": worst(RINGS, "bfloat16"),
            "| | fp16": worst(RINGS, "float16"),
            "| | fp32": worst(RINGS, "float32"),
            "| zigzag, stripe | 16 bit": worst(OTHERS, "b?float16"),
            "| | fp32 ": worst(OTHERS, "float32"),
            "torch 2.11 context parallelism | all-gather, all-to-all, balanced or not | all": worst("torch_.*", ".*"),
            "ring-attention-pytorch 0.5.20 | ring, striped | fp32": worst("ring_attention_.*", "float32"),
            "axolotl-ringmaster 0.2.7 | ring, all-gather, zigzag, DistFlash | fp32": worst("ringmaster_.*", "float32"),
        }
    )


def _prose(tables: Tables) -> list[Said]:
    few, four = tables.cases(TWO), tables.cases(TABLE)
    rows = beside(tables.whole(TABLE), OURS)
    torch = rows[rows["variant"].str.startswith("torch_")]["ratio"]
    unfused = beside(tables.whole(UNFUSED), OURS)
    unfused = unfused[unfused["variant"].str.fullmatch(f"{RINGS}|{OTHERS}")]
    wrong = (unfused["dtype"] == "float32") & unfused["tensor"].isin(["dq", "dk", "dv"]) & (unfused["world_size"] > 1)
    cast = unfused["variant"].str.fullmatch(RINGS) & (unfused["tensor"] == "dq") & (unfused["dtype"] != "bfloat16")
    right = unfused[~wrong & ~cast]["ratio"]
    packed = rows[(rows["variant"] == "ring_flash_attn_llama3") & (rows["kernel"] == "flash_attn")]
    packed = (packed.groupby("tensor")["ratio"].agg(["min", "max"]) - 1).abs().max(axis=1)
    alone = rows[rows["variant"].str.startswith("ringmaster_") & (rows["dtype"] == "float32")]
    alone = alone[alone["tensor"].isin(["dk", "dv"])].groupby("world_size")["ratio"].max()
    return [
        Said("{} and {} cases measured, none failed)", (four["ok"], few["ok"]), four["failed"] + few["failed"] == 0),
        Said("torch's {} rows agree in every digit on 4 GPUs.", (len(torch),), (torch == 1).all()),
        Said("all {} rows of their ring, zigzag and stripe agree in every digit", (len(right),), (right == 1).all()),
        Said("lse has up to {:.2f} times the error", (1 + packed["lse"],)),
        Said("out and gradients differ by {:.1%}", (packed[["out", "dq", "dk", "dv"]].max(),)),
        Said("it has {:.1f} times our error in float16.", (_dq_over_ours(tables.rows(TABLE)),)),
        Said(
            "wrong gradients** by {:.0%} and more.",
            tables.claimed(TABLE, "ring-flash-attn 0.1.8 and yunchang 0.6.4 acc", r"of \d+: ([\d.]+)"),
        ),
        Said("factor of {:.2f} and more from 2 to 4", tables.claimed(TABLE, "axolotl-ringmaster", r"growth ([\d.]+)")),
        Said("rank are {:.1f} times ours:", (alone[1],)),
        Said("which returns four since 2.7", source="flash-attn's own source"),
    ]


def _short(ratio: float) -> str:
    return f"{ratio:.1e}".replace("e+0", "e") if ratio >= 1000 else f"{ratio:.{2 if ratio < 2 else 1}f}"


def _dq_over_ours(rows: pd.DataFrame) -> float:
    """The largest error of the packages' dq in float16, on flash-attn itself, over that of our ring; of each alike."""
    dq = rows[(rows["dtype"] == "float16") & (rows["tensor"] == "dq") & (rows["rank"] == -1) & (rows["world_size"] > 1)]
    dq = dq[dq["kernel"] == "flash_attn"]
    errors = dq.groupby(["world_size", "variant"])["error_rel"].mean().unstack("variant")
    largest = errors[["ring_flash_attn_ring", "yunchang_ring"]].div(errors["ring"], axis=0).max()
    assert largest.round(1).nunique() == 1
    return float(largest.max())
