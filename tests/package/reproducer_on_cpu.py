"""torchrun tests/package/reproducer_on_cpu.py: the reproducer for TransformerEngine, on gloo, without flash-attn.

The script is the one of `experiments/te_growth`, but for its length and what is CUDA's.
"""

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch.distributed as dist

from accuracy.kernel.eager import Eager
from accuracy.package import flash_attn_stand_in, substitutes, transformer_engine

SCRIPT = Path(__file__).parents[2] / "experiments" / "te_growth" / "reproduce.py"
ON_A_CPU = {
    "torch.cuda.set_device(rank)": "torch.set_num_threads(1)",
    'dist.init_process_group("nccl", device_id=torch.device("cuda", rank))': 'dist.init_process_group("gloo")',
    "S, H, D = 8192, 8, 128": "S, H, D = 256, 4, 16",
    '"cuda"': '"cpu"',
}


def main() -> None:
    """As rank RANK of WORLD_SIZE."""
    source = SCRIPT.read_text()
    for theirs, ours in ON_A_CPU.items():
        assert theirs in source, theirs
        source = source.replace(theirs, ours)
    kernel: Any = Eager()
    with transformer_engine.in_place() as (module, backends), ExitStack() as stack:
        stack.enter_context(substitutes.modules(flash_attn_stand_in.modules(kernel)))
        stack.enter_context(substitutes.names(backends, **transformer_engine._stand_in(kernel)))
        stack.enter_context(substitutes.names(module.fa_utils, **dict.fromkeys(transformer_engine.VERSIONS, True)))
        stack.enter_context(transformer_engine._without_cuda(module))
        exec(compile(source, str(SCRIPT), "exec"), {"__name__": "__main__"})
    dist.destroy_process_group()
    os._exit(0)


if __name__ == "__main__":
    main()
