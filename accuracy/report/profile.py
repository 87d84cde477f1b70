"""Which errors along the sequence does a page carry? All lines that were measured, in bins as wide as it takes.

In: a row for each line, world size, tensor and bin of tokens. Out: the same lines in fewer, wider bins.
"""

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd

LINE = ["facet", "series", "world_size", "tensor"]
WIDEST = 32  # bins joined to one: of the 128 that a case has, 4 are left
BYTES_OF_BIN = 1.6  # of base64, at least


def coarsening(profiles: pd.DataFrame, budget: int) -> Iterator[pd.DataFrame]:
    """Every line, its neighbouring bins joined 1, 2, 4, ... WIDEST to one, from where they may cost so few bytes."""
    share = len(profiles) * BYTES_OF_BIN / budget
    first = max(0, math.ceil(math.log2(share))) if share > 1 else 0
    widest = WIDEST.bit_length() - 1
    for power in range(min(first, widest), widest + 1):
        yield joined(profiles, 2**power)


def joined(profiles: pd.DataFrame, bins: int) -> pd.DataFrame:
    """So many neighbouring bins as one: error_rms over all their tokens; rank -1 where they are of several."""
    if bins == 1:
        return profiles
    rows = profiles.sort_values([*LINE, "token_begin"], kind="stable")
    tokens = (rows["token_end"] - rows["token_begin"]).astype("float64")
    rows = rows.assign(bin=rows.groupby(LINE).cumcount() // bins, tokens=tokens, last=rows["rank"])
    rows["square"] = rows["error_rms"] ** 2 * tokens
    how = {"token_begin": "first", "token_end": "last", "rank": "min", "last": "max", "square": "sum", "tokens": "sum"}
    found = rows.groupby([*LINE, "bin"], sort=False).agg(how).reset_index()
    one = found["rank"] == found["last"]
    found = found.assign(rank=found["rank"].where(one, -1), error_rms=np.sqrt(found["square"] / found["tokens"]))
    return found[[*LINE, "token_begin", "token_end", "rank", "error_rms"]]
