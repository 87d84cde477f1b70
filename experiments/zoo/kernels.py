"""Attention that others wrote, each called as its users call it: fn(q, k, v, *, causal, softmax_scale) on one GPU.

q (B, S, H, D), k and v (B, S, Hk, D). Returns out, or out and lse. Gradients are the kernel's own, by autograd. What a
kernel does not take it refuses itself.
"""

import contextlib
import math
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Attention = Callable[..., Any]


def _heads_first(*tensors: Tensor) -> list[Tensor]:
    return [x.transpose(1, 2) for x in tensors]


def _repeated(q: Tensor, *tensors: Tensor) -> list[Tensor]:
    """Keys and values of every query head, for kernels without grouped heads."""
    return [x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in tensors]


def flash_attn_2(q, k, v, *, causal, softmax_scale):
    from flash_attn import flash_attn_func

    out, lse, _ = flash_attn_func(q, k, v, softmax_scale=softmax_scale, causal=causal, return_attn_probs=True)
    return out, lse


def flash_attn_2_features(q, k, v, *, causal, softmax_scale, window_size=(-1, -1), softcap=0.0):
    from flash_attn import flash_attn_func

    how = {"softmax_scale": softmax_scale, "causal": causal, "window_size": window_size, "softcap": softcap}
    return flash_attn_func(q, k, v, **how)


def flash_attn_2_varlen(q, k, v, *, causal, softmax_scale):
    from flash_attn import flash_attn_varlen_func

    starts = torch.arange(0, (len(q) + 1) * q.shape[1], q.shape[1], dtype=torch.int32, device=q.device)
    packed = [x.flatten(0, 1) for x in (q, k, v)]
    how = {"softmax_scale": softmax_scale, "causal": causal}
    return flash_attn_varlen_func(*packed, starts, starts, q.shape[1], q.shape[1], **how).view(q.shape)


def flash_attn_2_packed(q, k, v, *, causal, softmax_scale):
    from flash_attn import flash_attn_kvpacked_func

    return flash_attn_kvpacked_func(q, torch.stack([k, v], 2), softmax_scale=softmax_scale, causal=causal)


def _of_torch(backend: str, grouped: bool = False) -> Attention:
    def attention(q, k, v, *, causal, softmax_scale):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        if not grouped:
            k, v = _repeated(q, k, v)
        how = {"is_causal": causal, "scale": softmax_scale, "enable_gqa": grouped}
        with sdpa_kernel(getattr(SDPBackend, backend)):
            return F.scaled_dot_product_attention(*_heads_first(q, k, v), **how).transpose(1, 2)

    return attention


@cache
def _compiled(fn: Any) -> Any:
    return torch.compile(fn, dynamic=False)


def flex_compiled(q, k, v, *, causal, softmax_scale):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    length, mask = q.shape[1], None
    if causal:
        mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, length, length, device=q.device)
    how = {"block_mask": mask, "scale": softmax_scale, "enable_gqa": q.shape[2] != k.shape[2]}
    return _compiled(flex_attention)(*_heads_first(q, k, v), **how).transpose(1, 2)


def flex_score_mod(q, k, v, *, causal, softmax_scale):
    from torch.nn.attention.flex_attention import flex_attention

    def masked(score, b, h, i, j):
        return torch.where(i >= j, score, -math.inf)

    k, v = _repeated(q, k, v)
    how = {"score_mod": masked if causal else None, "scale": softmax_scale}
    return _compiled(flex_attention)(*_heads_first(q, k, v), **how).transpose(1, 2)


def fla_parallel(q, k, v, *, causal, softmax_scale):
    from fla.ops.attn import parallel_attn

    if not causal:
        raise NotImplementedError("causal only")
    return parallel_attn(q, k, v, scale=softmax_scale)


def flash_attn_triton(q, k, v, *, causal, softmax_scale):
    from flash_attn.flash_attn_triton import flash_attn_func

    return flash_attn_func(q, *_repeated(q, k, v), None, causal, softmax_scale)


def sage_attention(q, k, v, *, causal, softmax_scale):
    from sageattention import sageattn

    with torch.no_grad():
        return sageattn(*_heads_first(q, *_repeated(q, k, v)), is_causal=causal, sm_scale=softmax_scale).transpose(1, 2)


def _of_transformers(name: str) -> Attention:
    def attention(q, k, v, *, causal, softmax_scale):
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
        from transformers.models.llama.modeling_llama import eager_attention_forward

        groups = q.shape[2] // k.shape[2]
        module = SimpleNamespace(
            is_causal=causal, num_key_value_groups=groups, training=True, layer_idx=0,
            config=SimpleNamespace(_attn_implementation=name, dtype=q.dtype), modules=lambda: iter(()),
        )  # fmt: skip
        mask = None
        if name == "eager" and causal:
            mask = torch.full((q.shape[1], q.shape[1]), torch.finfo(q.dtype).min, dtype=q.dtype, device=q.device)
            mask = mask.triu(1)[None, None]
        call = eager_attention_forward if name == "eager" else ALL_ATTENTION_FUNCTIONS[name]
        how = {} if name == "eager" else {"is_causal": causal}
        return call(module, *_heads_first(q, k, v), mask, scaling=softmax_scale, dropout=0.0, **how)[0]

    return attention


def _of_jax(implementation: str) -> Attention:
    def attention(q, k, v, *, causal, softmax_scale):
        import jax

        if q.dtype == torch.float64:
            raise NotImplementedError("JAX has 64 bits only where jax_enable_x64 is set")
        arrays = [jax.dlpack.from_dlpack(x.detach().contiguous()) for x in (q, *_repeated(q, k, v))]
        how = {"is_causal": causal, "scale": softmax_scale, "implementation": implementation}
        return torch.from_dlpack(jax.nn.dot_product_attention(*arrays, **how))

    return attention


def _by_hand(context: Callable[[], Any]) -> Attention:
    def attention(q, k, v, *, causal, softmax_scale):
        with context():
            q, k, v = _heads_first(q, *_repeated(q, k, v))
            scores = q @ k.mT * softmax_scale
            if causal:
                hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
                scores = scores.masked_fill(hidden, -math.inf)
            return (scores.softmax(-1) @ v).transpose(1, 2)

    return attention


@contextlib.contextmanager
def _tf32():
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def compiled_by_hand(q, k, v, *, causal, softmax_scale):
    return _compiled(KERNELS["torch by hand"])(q, k, v, causal=causal, softmax_scale=softmax_scale)


KERNELS: dict[str, Attention] = {
    "flash-attn 2": flash_attn_2, "flash-attn 2, window and softcap": flash_attn_2_features,
    "flash-attn 2, varlen": flash_attn_2_varlen, "flash-attn 2, kvpacked": flash_attn_2_packed,
    "flash-attn's Triton file": flash_attn_triton, "torch flash": _of_torch("FLASH_ATTENTION", grouped=True),
    "torch efficient": _of_torch("EFFICIENT_ATTENTION"), "torch cudnn": _of_torch("CUDNN_ATTENTION"),
    "torch math": _of_torch("MATH"), "torch by hand": _by_hand(contextlib.nullcontext),
    "torch by hand, TF32": _by_hand(_tf32), "torch by hand, compiled": compiled_by_hand,
    "flex, block mask": flex_compiled, "flex, score_mod": flex_score_mod, "fla parallel_attn": fla_parallel,
    "sageattention": sage_attention, "transformers eager": _of_transformers("eager"),
    "transformers sdpa": _of_transformers("sdpa"),
    "transformers flash_attention_2": _of_transformers("flash_attention_2"),
    "jax cudnn": _of_jax("cudnn"), "jax xla": _of_jax("xla"),
}  # fmt: skip
PACKAGES = {"flash-attn": "flash-attn", "fla": "fla-core", "sage": "sageattention", "transformers": "transformers",
            "jax": "jax", "torch": "torch", "flex": "torch"}  # fmt: skip
