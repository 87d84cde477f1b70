"""What do real ranks cost beside the work itself? Start-up once, then per case: sending shards, results, waiting.

ring-flash-attention's own scripts start torchrun for every case: 15.4 to 18.1 s each on H200s.
"""

import statistics
import time
from collections.abc import Iterator

import torch

from accuracy.execute.plan import plan
from accuracy.execute.ranks.pool import Pool
from accuracy.measure.pipeline import Pipeline
from accuracy.reference.cache import Cache
from accuracy.runtime import device as devices
from accuracy.simulate.program import Ran
from tests.measuring import configuration

TARGET = 10  # milliseconds a case on top of the work, on 4 H200s
CASES = 30


def lines(device: str) -> Iterator[str]:
    most = devices.count() if device == "cuda" else 4
    if most < 2:
        yield f"real ranks: not measured, there is {most} GPU"
        return
    sizes = [size for size in (2, 4, 8) if size <= most]
    pool = Pool(tuple(sizes), "nccl" if device == "cuda" else "gloo", timeout=120.0)
    spent: list[tuple[float, float]] = []  # wall seconds of a case, and of its slowest rank's work

    def timed(case, shards) -> Ran:
        if device == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        ran = pool.run(case, shards)
        spent.append((time.perf_counter() - begin, ran.cost.seconds))
        return ran

    words = ("problem=small", "variant=[ring,zigzag,llama3]", f"device={device}", "dtype=bfloat16")
    try:
        pipeline = Pipeline("bench", Cache(None, 0.0), timed)
        for size in sizes:
            plans = plan(configuration(*words, f"world_size={size}", "world=processes"), None)
            for index in range(CASES):
                (row, *_) = pipeline.measure(plans[index % len(plans)].case).rows
                assert row["status"] == "ok", row["reason"]
            if size == sizes[0]:
                yield f"real ranks: start of {sizes[-1]} processes and first case {spent[0][0]:.1f} s, once a run"
            extra = sorted(1000 * (wall - work) for wall, work in spent[3:])  # each variant's first warms up
            target = f"; target <= {TARGET}" if device == "cuda" else ""
            yield (
                f"  {size} ranks: {statistics.median(extra):.1f} ms a case on top of the work"
                f" (slowest tenth from {extra[-len(extra) // 10]:.1f}){target}"
            )
            spent.clear()
        pool.close()
    finally:
        pool.kill()
