"""The numbers of README.md, from its published table."""

import pandas as pd

from experiments.published import TENSORS, Tables, cells, chosen, markdown, span

TABLE, THEIRS = "te_real_ranks/nvidia-h200-x2", "transformer_engine_"


def blocks(tables: Tables) -> dict[str, str]:
    rows = chosen(tables.rows(TABLE), status="ok", precision="", rank=-1, tensor=TENSORS, world_size=[2, 4])
    errors = rows.set_index(["variant", "world_size", "dtype", "seed", "tensor"])["error_rel"].unstack("variant")
    apart = {way: (errors[THEIRS + way] / errors[f"te_{way}"] - 1).abs() for way in ("p2p", "all_gather", "a2a")}
    p2p, equal = apart["p2p"], sum((apart[way] == 0).sum() for way in ("all_gather", "a2a"))
    mixed = (errors[f"{THEIRS}a2a_p2p"][4] / errors[f"{THEIRS}p2p"][2] - 1).abs()
    whole = chosen(rows, dtype="bfloat16", world_size=4).groupby(["variant", "tensor"])["x_single_device"].mean()
    keys = ("world_size", "variant", "rank", "tensor")
    ranks = tables.worst_ranks(TABLE, keys, dtype="bfloat16", precision="", world_size=[2, 4])
    two = [(way, rank, ranks["x_single_device"][2, THEIRS + way, rank]) for way in apart for rank in (0, 1)]
    memory, error = _in_float32(chosen(tables.rows(TABLE), variant="te_p2p", status="ok", world_size=[2, 4]))
    return {
        "two": markdown(
            ("2 ranks", *TENSORS), ((f"{way}, rank {rank}", *cells(each, TENSORS)) for way, rank, each in two)
        ),
        "four": markdown(
            ("4 ranks, all together", *TENSORS),
            ((way.replace("_p2p", "+p2p"), *cells(whole[THEIRS + way], TENSORS)) for way in (*apart, "a2a_p2p")),
        ),
        "halves": f"at most {ranks['half'].max():.3f}",
        "twins": f"{equal} of {2 * len(p2p)} rows",
        "p2p": f"{(p2p > 0).sum()} of its {len(p2p)} rows differ from the twin's, by at most {p2p.max():.3%} of the error",
        "mixed": f"to {mixed.max():.2%}",
        "cost": f"{span(memory[2], '.0%')} of memory at 2 ranks, where errors change by {span(error[2], '.0%')}, and"
        f" {span(memory[4], '.0%')} at 4, where errors over all ranks fall by {span(-error[4], '.0%')}",
    }


def _in_float32(ring: pd.DataFrame) -> "tuple[pd.Series[float], pd.Series[float]]":
    """By world size, what float32 accumulators and wires change, as a share: peak memory and errors over all ranks."""
    peaks = ring.groupby(["world_size", "dtype", "precision"])["peak_bytes"].max().unstack()
    pooled = chosen(ring, rank=-1, tensor=TENSORS).set_index(["world_size", "dtype", "tensor", "seed", "precision"])
    errors = pooled["error_rel"].unstack()
    memory, error = (each.drop(columns="").squeeze(axis=1) / each[""] - 1 for each in (peaks, errors))
    return memory, error
