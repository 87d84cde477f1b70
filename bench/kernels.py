"""How fast is each kernel on one GPU, and how steady? By hand: `python -m bench.kernels`, about a minute.

Speeds are ratios to flash-attn 2 as it comes (backward not deterministic) in the same run: above 1 is faster. Targets
on an H200, causal: forward at least 0.70, carried or not; split backward at least 0.60.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from accuracy.core import plugins
from accuracy.kernel.base import Kernel
from accuracy.kernel.block.running_state import SoftmaxState
from accuracy.runtime import arithmetic, device
from bench import device_time

LENGTH, HEADS, HEADS_KV, DIM = 8192, 32, 8, 128
SCALE = DIM**-0.5
REPEATS, RUNS = 20, 10
SWEEP = (1, 2, 4, 8, 16, 32, 64)
KERNELS = {
    "flash_attn": ("flash_attn", {"deterministic": False}),
    "flash_attn_deterministic": ("flash_attn", {"deterministic": True}),
    "torch_flash": ("in_torch:torch_flash", {"deterministic": False}),
    "triton_carry": ("triton.available:triton_carry", {}),
    "triton_split_backward": ("triton.available:triton_split_backward", {}),
    "triton_fused_backward": ("triton.available:triton_fused_backward", {}),
}


@dataclass(frozen=True)
class Inputs:
    q: Tensor
    k: Tensor
    v: Tensor
    dout: Tensor
    causal: bool

    @classmethod
    def draw(cls, length: int, heads: int, heads_kv: int, causal: bool) -> "Inputs":
        generator = torch.Generator("cuda").manual_seed(0)
        tensors = (
            torch.randn(1, length, count, DIM, generator=generator, device="cuda", dtype=torch.bfloat16)
            for count in (heads, heads_kv, heads_kv, heads)
        )
        return cls(*tensors, causal)

    def forward(self, kernel: Kernel) -> tuple[Tensor, Tensor]:
        return kernel.forward(self.q, self.k, self.v, scale=SCALE, causal=self.causal, out_dtype=self.q.dtype)

    def backward(self, kernel: Kernel, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        tensors = (self.dout, self.q, self.k, self.v, out, lse)
        return kernel.backward(*tensors, scale=SCALE, causal=self.causal, gradient_dtype=self.q.dtype)


def main() -> None:
    if not torch.cuda.is_available():
        raise SystemExit("needs a CUDA device")
    arithmetic.make_exact()
    begin = time.perf_counter()
    say(f"{device.name('cuda')}, torch {torch.__version__}, bfloat16, D={DIM}, median of {REPEATS}")
    for causal in (True, False):
        speeds(causal)
    sweep()
    say(f"\n{time.perf_counter() - begin:.0f} s in all")


def say(text: str) -> None:
    print(text, flush=True)


def kernels(names: tuple[str, ...] = tuple(KERNELS)) -> Iterator[tuple[str, Kernel]]:
    """Those that can run here; the others say why not."""
    for name in names:
        source, options = KERNELS[name]
        module = plugins.load(f"accuracy.kernel.{source}")
        built: Any = plugins.build_options(module, tuple(options.items()))
        missing = built.abilities("cuda").missing
        if missing:
            say(f"{name:26} {missing}")
        else:
            yield name, built.build("cuda")


def milliseconds(call: Callable[[], object]) -> float:
    """The median of several calls, each between two events."""
    for _ in range(3):
        call()
    return statistics.median(device_time.between_events(call, REPEATS))


def attempt(name: str, call: Callable[[], object]) -> Any:
    """The call's result; None, and the reason in a line, where it fails."""
    try:
        return call()
    except Exception as error:
        say(f"{name:26} failed: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
        return None


def speeds(causal: bool) -> None:
    inputs = Inputs.draw(LENGTH, HEADS, HEADS_KV, causal)
    say(f"\nS={LENGTH} H={HEADS} Hk={HEADS_KV}, {'causal' if causal else 'full'}")
    say(f"{'':26} forward ms  ratio   backward ms  ratio")
    base: tuple[float, float] | None = None
    for name, kernel in kernels():
        found = attempt(name, partial(both_ways, inputs, kernel))
        if found is None:
            continue
        base = base or found
        say(f"{name:26} {found[0]:10.3f}  {base[0] / found[0]:5.2f}  {found[1]:12.3f}  {base[1] / found[1]:5.2f}")
        if name == "triton_carry":
            state = SoftmaxState.empty(inputs.q)
            took = attempt(name, partial(milliseconds, partial(go_on, kernel, state, inputs)))
            if took is not None:
                say(f"{'  from a state':26} {took:10.3f}  {base[0] / took:5.2f}")


def both_ways(inputs: Inputs, kernel: Kernel) -> tuple[float, float]:
    out, lse = inputs.forward(kernel)
    forward = milliseconds(partial(inputs.forward, kernel))
    return forward, milliseconds(partial(inputs.backward, kernel, out, lse))


def go_on(kernel: Any, state: SoftmaxState, inputs: Inputs) -> None:
    kernel.carry(state, inputs.q, inputs.k, inputs.v, scale=SCALE, causal=inputs.causal)


def sweep() -> None:
    """Where does each form of the backward win, and how much does dq vary from run to run?"""
    say(f"\nbackward, S=4096 causal, Hk=H, over batch x heads; spread: largest |dq - dq'| / |dq| of {RUNS} runs")
    say(f"{'':26} B x H          ms  ratio    spread  runs of other bits")
    for heads in SWEEP:
        inputs = Inputs.draw(4096, heads, heads, True)
        base = None
        for name, kernel in kernels(("flash_attn", "triton_split_backward", "triton_fused_backward")):
            found = attempt(name, partial(spread, inputs, kernel))
            if found is not None:
                took, largest, others = found
                base = base or took
                say(f"{name:26} {heads:5} {took:11.3f}  {base / took:5.2f}  {largest:8.1e}  {others}")


def spread(inputs: Inputs, kernel: Kernel) -> tuple[float, float, int]:
    out, lse = inputs.forward(kernel)
    first, *others = (inputs.backward(kernel, out, lse)[0] for _ in range(RUNS))
    differences = [float((x.double() - first.double()).norm() / first.double().norm()) for x in others]
    return milliseconds(partial(inputs.backward, kernel, out, lse)), max(differences), sum(d > 0 for d in differences)


if __name__ == "__main__":
    main()
