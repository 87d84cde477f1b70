"""`python -m experiments.held_out CSV`: who catches the faults of public reports, and who accuses healthy functions?

A row for each function and rule. All rules but `accuracy.diagnose`, which draws its own, see the same tensors: 192
tokens, 8 heads of 32 on 2 of keys, in three dtypes. plain: Gaussian, with and without a causal mask, and half the
queries; hard: larger scores, scores far below zero, and another scale, causal.
"""

import contextlib
import csv
import io
import logging
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

import accuracy
from experiments.held_out import functions

COLUMNS = ("function", "faulty", "report", "known", "ranks", "rule", "plain", "hard", "said")
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
WINDOW = 31


class Function(NamedTuple):
    """known: diagnose was changed after it had been tried on this one; tokens: of each rank, where ranks share."""

    report: str
    call: Callable[..., Tensor]
    known: bool = True
    masks: tuple[bool, ...] = (True, False)
    tokens: tuple[int, ...] = ()


SHARED: dict[str, Any] = {"masks": (False,), "tokens": (96, 96)}
FAULTS = {
    "empty block": Function("flash-attention #2082", partial(functions.blocks, right=True, mistake="empty block")),
    "half a tile of padding": Function("pytorch #196678", partial(functions.padded, backward=True, counted=True)),
    "four queries": Function("pytorch #195910", partial(functions.kernel, mistake="four queries")),
    "default scale": Function("TensorRT-LLM #19112", partial(functions.parts, default_scale=True)),
    "lost window": Function("flash-attention #2424", partial(functions.windowed, lost=True)),
    "kept graph": Function("flashinfer #4014", functions.kept_graph),
    "old maximum": Function("aprender #2753", partial(functions.blocks, mistake="old maximum")),
    "causal backward": Function("triton #5660", partial(functions.kernel, mistake="causal backward")),
    "equal gradients": Function("slime #1748", partial(functions.all_compute, repeated=True), tokens=(96, 96)),
    "text of every rank": Function("sglang #33327", partial(functions.ring, mistake="text of every rank"), **SHARED),
    "zero keys": Function(
        "DeepSpeed #7384", partial(functions.ring, mistake="zero keys"), **SHARED | {"tokens": (112, 80)}
    ),
    "unmasked tail": Function("jax #27224", partial(functions.padded, counted=True), False),
    "first corner": Function("ffpa-attn #300", partial(functions.kernel, mistake="first corner"), False),
    "divided by heads": Function("ONNXim #34", partial(functions.kernel, mistake="divided by heads"), False),
    "tiled heads": Function("onnx #7274", partial(functions.kernel, mistake="tiled heads"), False),
    "colliding heads": Function("HipKittens #22", partial(functions.kernel, mistake="colliding heads"), False),
    "own keys": Function("diffusers #14265", partial(functions.ring, mistake="own keys"), False, **SHARED),
}
HEALTHY = {
    "kernel": Function("corrected: six", functions.kernel),
    "blocks": Function("corrected: old maximum", functions.blocks),
    "blocks from the right": Function("corrected: empty block", partial(functions.blocks, right=True)),
    "padded": Function("corrected: unmasked tail", functions.padded),
    "padded backward": Function("corrected: half a tile of padding", partial(functions.padded, backward=True)),
    "parts": Function("corrected: default scale", functions.parts),
    "windowed": Function("corrected: lost window", functions.windowed),
    "exp(s - lse)": Function("refused by assert_close once", functions.by_lse),
    "scaled query": Function("h3.c #3", functions.scaled_query),
    "all compute": Function("corrected: equal gradients", functions.all_compute, tokens=(96, 96)),
    "ring": Function("corrected: own keys, text of every rank", functions.ring, tokens=(96, 96)),
    "uneven ring": Function("corrected: zero keys", functions.ring, masks=(False,), tokens=(112, 80)),
}


class Tensors(NamedTuple):
    """Of out, dq, dk or dv, float64: what was returned, the exact one, that rounded to the dtype, plain attention in
    the dtype; world: ranks."""

    name: str
    dtype: torch.dtype
    x: Tensor
    exact: Tensor
    rounded: Tensor
    plain: Tensor
    world: int


def _close(x: Tensor, y: Tensor, atol: float, rtol: float) -> bool:
    return bool(((x - y).abs() <= atol + rtol * y.abs()).all())


def _flash_attention(t: Tensors) -> bool:
    own, plain = ((x - t.rounded).abs().max() for x in (t.x, t.plain))
    return bool(own <= (2 if t.name == "out" else 3) * plain)


def _torch_cp(t: Tensors) -> bool:
    short = 1e-3 if t.name == "out" else 8e-3
    atol = short * t.world if t.dtype == torch.bfloat16 else 1e-8 if t.name == "out" else 2e-6
    return _close(t.rounded, t.x, atol, 1e-5)


def _transformer_engine(t: Tensors) -> bool:
    tolerance = 5e-3 if t.dtype == torch.float16 else 3.5e-2
    return _close(t.x, t.rounded, tolerance, tolerance)


def _torch_defaults(t: Tensors) -> bool:
    return _close(t.x, t.rounded, 1e-5, {torch.bfloat16: 1.6e-2, torch.float16: 1e-3, torch.float32: 1.3e-6}[t.dtype])


RULES: dict[str, tuple[tuple[torch.dtype, ...], Callable[[Tensors], bool]]] = {
    "flash-attention 2x": (DTYPES[:2], _flash_attention),
    "torch.testing defaults": (DTYPES, _torch_defaults),
    "torch context parallel": ((torch.bfloat16, torch.float32), _torch_cp),
    "TransformerEngine context parallel": (DTYPES[:2], _transformer_engine),
    "ring-flash-attention": (DTYPES, lambda tensors: True),  # its tests print differences
}
"""By name: the dtypes that a project's tests have, and what they accept; sources: experiments/tolerances."""


class Setting(NamedTuple):
    """hard: in which way, or empty; factor: of q and k; below: where all scores are, about."""

    hard: str
    dtype: torch.dtype
    causal: bool
    queries: int
    factor: float = 1.0
    below: float = 0.0
    scale: float = 32**-0.5


def settings(function: Function) -> Iterator[Setting]:
    """The default scale first, as a user's first call has it."""
    for dtype in DTYPES:
        yield from (Setting("", dtype, causal, 192) for causal in function.masks)
        if not function.tokens:
            yield Setting("", dtype, True, 96)
        causal = function.masks[0]
        yield Setting("larger", dtype, causal, 192, factor=6.0)
        yield Setting("far below zero", dtype, causal, 192, below=-150.0)
        yield Setting("other scale", dtype, causal, 192, scale=0.25)


def drawn(setting: Setting) -> list[Tensor]:
    """q, k, v, dout."""
    random = torch.Generator().manual_seed(0)
    shapes = [(1, setting.queries, 8, 32), *[(1, 192, 2, 32)] * 2, (1, setting.queries, 8, 32)]
    q, k, v, dout = (torch.randn(shape, generator=random) for shape in shapes)
    q, k = q * setting.factor, k * setting.factor
    if setting.below:  # by one channel, as a massive activation does
        q, k = q * 0.3, k * 0.3
        q[..., 0], k[..., 0] = 1.0, setting.below / setting.scale
    return [x.to(setting.dtype) for x in (q, k, v, dout)]


def plain(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, window: int) -> Tensor:
    """Attention as it is written down, all in the inputs' dtype."""
    keys, values = (x[:, :, functions.heads_of(q, k)].transpose(1, 2) for x in (k * softmax_scale, v))
    seen = functions.visible(*functions.places(q, k), causal, window)
    return ((q.transpose(1, 2) @ keys.mT).masked_fill(~seen, -torch.inf).softmax(-1) @ values).transpose(1, 2)


def with_gradients(call: Callable[..., Tensor], tensors: list[Tensor], **how: Any) -> list[Tensor]:
    *inputs, dout = tensors
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    out = call(*inputs, **how)
    return [out.detach(), *torch.autograd.grad(out, inputs, dout)]


def returned(function: Function, setting: Setting, group: Any = None) -> list[Tensor]:
    """out, dq, dk, dv, of all ranks' tokens where ranks share the work."""
    how: dict[str, Any] = {"causal": setting.causal, "softmax_scale": setting.scale}
    tensors = drawn(setting)
    if function.tokens:
        how["group"], rank = group, dist.get_rank(group)
        tensors = [x.split(function.tokens, 1)[rank].contiguous() for x in tensors]
    if _has_window(function):
        how["window_size"] = WINDOW, 0 if setting.causal else WINDOW
    found = with_gradients(function.call, tensors, **how)
    if not function.tokens:
        return found
    every: list[Any] = [None] * len(function.tokens)
    dist.all_gather_object(every, found, group=group)
    return [torch.cat(each, 1) for each in zip(*every, strict=True)]


def _has_window(function: Function) -> bool:
    return getattr(function.call, "func", function.call) is functions.windowed


def _rank(rank: int, faulty: bool, name: str, folder: str) -> None:
    function = (FAULTS if faulty else HEALTHY)[name]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=len(function.tokens))
    found = [returned(function, each) for each in settings(function)]
    if rank == 0:
        torch.save(found, f"{folder}/found")
    dist.destroy_process_group()


def refusals(faulty: bool, name: str) -> dict[str, dict[str, bool]]:
    """By rule: whether it refuses some tensor on plain inputs, and on hard ones."""
    function = (FAULTS if faulty else HEALTHY)[name]
    if function.tokens:
        from experiments.held_out import __main__ as this  # a diagnosis beside it may hide the main module

        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(this._rank, (faulty, name, folder), nprocs=len(function.tokens))
            every = torch.load(f"{folder}/found")
    else:
        every = [returned(function, each) for each in settings(function)]
    said = {rule: {"plain": False, "hard": False} for rule in ("accuracy.assert_close", *RULES)}
    window = WINDOW if _has_window(function) else -1
    for setting, found in zip(settings(function), every, strict=True):
        how, inputs = {"causal": setting.causal, "softmax_scale": setting.scale}, drawn(setting)
        exact = with_gradients(plain, [x.double() for x in inputs], window=window, **how)
        lower = with_gradients(plain, inputs, window=window, **how)
        refused = set()
        for tensor, x, right, low in zip(("out", "dq", "dk", "dv"), found, exact, lower, strict=True):
            given = Tensors(tensor, setting.dtype, x.double(), right, right.to(x.dtype).double(), low.double(),
                            len(function.tokens) or 1)  # fmt: skip
            refused |= {rule for rule, (dtypes, passes) in RULES.items()
                        if setting.dtype in dtypes and not (passes(given) and x.isfinite().all())}  # fmt: skip
        try:
            out, dq, dk, dv = found
            more = {"window": window} if window >= 0 else {}
            accuracy.assert_close(out, *inputs[:3], dout=inputs[3], dq=dq, dk=dk, dv=dv, **how, **more)
        except AssertionError:
            refused.add("accuracy.assert_close")
        for rule in refused - {"ring-flash-attention"}:
            said[rule]["hard" if setting.hard else "plain"] = True
    return said


def diagnosed(faulty: bool, name: str) -> tuple[bool, str]:
    """Return whether `accuracy.diagnose` calls the function a bug, and the sentence that it gives."""
    function = (FAULTS if faulty else HEALTHY)[name]
    how: dict[str, Any] = {"world_size": len(function.tokens) or 1, "progress": False}
    if function.masks == (False,):
        how["mask"] = "full"
    if len({*function.tokens}) > 1:
        how |= {"sharding": "+".join(map(str, function.tokens)), "seqlen": sum(function.tokens)}
    with contextlib.redirect_stderr(io.StringIO()):
        found = accuracy.diagnose({"attention": function.call}, device="cpu", **how)
    return found.is_bug, found.sentence


def rows(faulty: bool, name: str) -> list[tuple[object, ...]]:
    warnings.filterwarnings("ignore")
    logging.getLogger("accuracy").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    function = (FAULTS if faulty else HEALTHY)[name]
    about = name, faulty, function.report, function.known, len(function.tokens) or 1
    refused = [(*about, rule, *by.values(), "") for rule, by in refusals(faulty, name).items()]
    is_bug, sentence = diagnosed(faulty, name)
    return [(*about, "accuracy.diagnose", is_bug, is_bug, sentence), *refused]


def main(path: str) -> None:
    corpus = [(True, name) for name in FAULTS] + [(False, name) for name in HEALTHY]
    with ProcessPoolExecutor(2) as pool, open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for found in pool.map(rows, *zip(*corpus, strict=True)):
            writer.writerows(found)
            file.flush()
            print(*found[0], sep=" | ", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
