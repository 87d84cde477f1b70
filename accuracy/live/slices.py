"""What of a capture proves its fault by itself, without running anything again?

A row of out, lse or dq depends on its own q and dout and on the keys that it sees; a row of dk or dv on its own k and v
and on the queries that see it, whose lse and delta (float64) stand for the keys that are left out.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from accuracy.live.call_on_disk import Call
from accuracy.live.delta import smallest
from accuracy.live.verdict import SHORT

OF_KEYS = ("dk", "dv")


def few_rows(call: Call, tensor: str, row: Mapping[str, Any]) -> tuple[int, int, list[int]]:
    """Batch, head and tokens of the fewest rows that are still wrong; row: of the judgement, its worst place. Of a
    tensor that is wrong as a whole only, all rows of the worst head."""
    exact, x = call.exact(tensor), call.tensors[tensor].double()
    allowed = call.rounding()
    square, limits = (x - exact).nan_to_num(nan=torch.inf).square(), allowed.rows(tensor).square()
    square = square.sum(-1) if exact.dim() == 4 else square
    seen = ~call.reference.lse.transpose(1, 2).isneginf()
    square = square if tensor in OF_KEYS else square.where(seen, 0.0)
    of_heads = (square.sum(1) / limits.sum(1)).flatten()
    batch, head = divmod(int(of_heads.argmax()), exact.shape[2])
    mine, limit = square[batch, :, head], limits[batch, :, head]
    short = row["label"] == "precision_floor" and 0 < row["significand_bits"] <= SHORT

    def fails(tokens: Sequence[int]) -> bool:
        kept = list(tokens)
        most = float(allowed.whole(tensor, lambda x: x[batch, kept, head][None]))
        return short or float(mine[kept].sum()) > most**2 or bool((mine[kept] > limit[kept]).any())

    worst = [int((mine / limit).nan_to_num(nan=0.0).argmax())]
    tokens = list(range(len(mine)))
    return batch, head, worst if fails(worst) else smallest(tokens, fails) if fails(tokens) else tokens


def sliced(call: Call, tensor: str, batch: int, head: int, tokens: Sequence[int]) -> dict[str, Tensor]:
    """The data of a script: q, k, v, dout, what the model gave, and the mask as numbers that are added (Sq, S); for dk
    and dv lse and delta too."""
    q, k, v = (call.tensors[name][batch] for name in "qkv")
    share, keep = q.shape[1] // k.shape[1], list(tokens)
    queries = head * share if tensor in OF_KEYS else head
    heads = list(range(queries, queries + share)) if tensor in OF_KEYS else [head]
    kv = head if tensor in OF_KEYS else head // share
    added = torch.stack([call.mask.block(batch, each, 0, q.shape[0]) for each in heads])
    seen = added.isfinite().any(0)
    if tensor in OF_KEYS:
        rows, columns = seen[:, keep].any(1).nonzero().flatten().tolist(), keep
    else:
        rows, columns = keep, seen[keep].any(0).nonzero().flatten().tolist()
    data = {
        "q": q[rows][:, heads][None], "k": k[columns][:, [kv]][None], "v": v[columns][:, [kv]][None],
        "dout": call.dout[batch, rows][:, heads][None], "mask": added[:, rows][:, :, columns][None],
        "given": call.tensors[tensor][batch, keep][:, [head]][None],
    }  # fmt: skip
    if tensor in OF_KEYS:
        lse, delta = (getattr(call.reference, name)[batch, heads][:, rows][None] for name in ("lse", "delta"))
        data |= {"lse": lse, "delta": delta}
    return {name: x.detach().cpu().contiguous() for name, x in data.items()}
