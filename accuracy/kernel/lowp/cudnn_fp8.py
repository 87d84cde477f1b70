"""cuDNN's FP8 attention (nvidia-cudnn-frontend): e4m3 or e5m2, forward and backward, 8-bit results; Hopper and later.

One float32 scale a tensor; the scales of results and of dS are the caller's to choose. So a forward is run twice: with
a scale of 1 for out, whose largest value comes back, and with the one that follows. A backward is run three times: for
dS, then for dq, dk and dv, then for good. Only the values of a first pass, at a scale of 1, are used: whether the
library takes a largest value before or after the scale does not matter.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from accuracy.core.dtype import OneOf
from accuracy.core.quantisation import FORMATS, POLICIES, Policy
from accuracy.kernel.base import Abilities, Gradients, How, Kernel, package_missing, square
from accuracy.runtime.rounding import scales_of

HOPPER_HEAD_DIM = 128
"""The only head dim of its backward on Hopper (cudnn_frontend/node/sdpa_fp8_bwd.h)."""
FORWARD = ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")
BACKWARD = (
    "descale_q", "descale_k", "descale_v", "descale_o", "descale_dO", "descale_s", "descale_dP", "scale_s", "scale_dQ",
    "scale_dK", "scale_dV", "scale_dP",
)  # fmt: skip
SCALARS = (1, 1, 1, 1)
DTYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
Shape = tuple[int, int, int, int]  # (B, H, S, D)
Graph = tuple[Any, dict[str, Any], list[Any]]  # the graph, its inputs by name, its outputs


@dataclass(frozen=True)
class CudnnFp8(Kernel):
    """policy: by name; its emulation is `quantised` with the same one."""

    policy: Annotated[str, OneOf("cudnn_e4m3", "cudnn_e5m2")] = "cudnn_e4m3"

    def abilities(self, device: str) -> Abilities:
        """bfloat16, float16 and float32, which are cast to 8 bits; head_dim 128 on Hopper, to 128 in multiples of 16
        later."""
        if device != "cuda":
            return Abilities(missing="needs a GPU with FP8 tensor cores, here is a CPU; use kernel=quantised")
        major = torch.cuda.get_device_capability()[0]
        if major < 9:
            return Abilities(missing=f"needs compute capability 9 or later, this GPU has {major}; use kernel=quantised")
        return Abilities(
            dtypes=("bfloat16", "float16", "float32"), partial_dtypes=("float32",), deterministic=False,
            head_dim_min=HOPPER_HEAD_DIM if major == 9 else 16, head_dim_max=128, head_dim_multiple=16,
            missing=package_missing("cudnn", "cuDNN's frontend; pip install nvidia-cudnn-frontend"),
        )  # fmt: skip

    def _forward(self, q: Tensor, k: Tensor, v: Tensor, how: How) -> tuple[Tensor, Tensor]:
        rows = q.shape[1]
        (q,) = square(how, k, q)
        out, lse = _graph_forward(q, k, v, POLICIES[self.policy], how.scale, how.causal)
        return out[:, -rows:], lse[..., -rows:].contiguous()

    def _backward(self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, how: How) -> Gradients:
        rows = q.shape[1]
        dout, q, out = square(how, k, dout, q, out)
        lse = F.pad(lse, (q.shape[1] - rows, 0))
        dq, dk, dv = _graph_backward(dout, q, k, v, out, lse, POLICIES[self.policy], how.scale, how.causal)
        return dq[:, -rows:], dk, dv


def _graph_forward(
    q: Tensor, k: Tensor, v: Tensor, policy: Policy, scale: float, causal: bool
) -> tuple[Tensor, Tensor]:
    """out (B, Sq, H, D) and lse (B, H, Sq), natural, both float32, of q (B, Sq, H, D), k and v (B, Sk, Hk, D)."""
    operands, factors = _operands({"q": q, "k": k, "v": v}, policy)
    factors |= {"scale_s": policy.p_prescale, "descale_s": 1 / policy.p_prescale, "scale_o": 1.0}
    shapes = tuple(tuple(x.shape) for x in operands.values())
    graph, inputs, outputs = _forward_graph(shapes, policy.q, scale, causal)
    out = torch.empty_like(operands["q"])
    lse = out.new_empty(*out.shape[:3], 1, dtype=torch.float32)
    largest = [lse.new_zeros(SCALARS) for _ in range(2)]
    for _ in range(2):
        _execute(graph, inputs, operands | factors, outputs, [out, lse, *largest])
        used, factors["scale_o"] = factors["scale_o"], _scale(policy.out, largest[1])
    return (out.float() / used).transpose(1, 2), lse[..., 0]


def _graph_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, policy: Policy, scale: float, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """dq (B, Sq, H, D), dk, dv (B, Sk, Hk, D), float32."""
    operands, factors = _operands({"q": q, "k": k, "v": v, "o": out, "dO": dout}, policy)
    factors |= {"scale_s": policy.p_prescale, "descale_s": 1 / policy.p_prescale, "descale_dP": 1.0}
    factors |= dict.fromkeys(("scale_dQ", "scale_dK", "scale_dV", "scale_dP"), 1.0)
    shapes = tuple(tuple(operands[name].shape) for name in "qk")
    graph, inputs, outputs = _backward_graph(shapes, policy.q, scale, causal)
    gradients = [torch.empty_like(operands[name]) for name in "qkv"]
    largest = [lse.new_zeros(SCALARS, dtype=torch.float32) for _ in range(4)]
    operands |= {"stats": lse.float().unsqueeze(-1).contiguous()}
    for turn in range(3):
        _execute(graph, inputs, operands | factors, outputs, [*gradients, *largest])
        if turn == 0:
            factors["scale_dP"] = _scale(policy.ds, largest[3])
            factors["descale_dP"] = 1 / factors["scale_dP"]
        if turn == 1:
            formats = zip("QKV", (policy.dq, policy.dk, policy.dv), largest, strict=False)
            factors |= {f"scale_d{letter}": _scale(word, most) for letter, word, most in formats}
    scales = (factors[f"scale_d{letter}"] for letter in "QKV")
    dq, dk, dv = ((x.float() / scale).transpose(1, 2) for x, scale in zip(gradients, scales, strict=True))
    return dq, dk, dv


def _operands(tensors: dict[str, Tensor], policy: Policy) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Codes (B, H, S, D), contiguous, and what each is to be multiplied by."""
    found = {name: _cast(x.transpose(1, 2), policy) for name, x in tensors.items()}
    return {name: codes for name, (codes, _) in found.items()}, {f"descale_{name}": x for name, (_, x) in found.items()}


def _cast(x: Tensor, policy: Policy) -> tuple[Tensor, float]:
    """x (B, H, S, D) in the policy's format, contiguous, and the scale of the tensor."""
    scale = scales_of(x, FORMATS[policy.q], policy, (), x.abs().amax().float())
    divisor = torch.where(scale == 0, 1.0, scale)
    return (x.float() / divisor).to(DTYPES[policy.q]).contiguous(), float(divisor)


def _scale(word: str, largest: Tensor) -> float:
    return FORMATS[word].largest / float(largest) if float(largest) > 0 else 1.0


def _execute(
    graph: Any, inputs: dict[str, Any], factors: dict[str, Any], outputs: Sequence[Any], results: Sequence[Tensor]
) -> None:
    device = results[0].device
    pack = {
        place: x if isinstance(x := factors[name], Tensor) else torch.full(SCALARS, x, device=device)
        for name, place in inputs.items()
    }
    workspace = torch.empty(max(graph.get_workspace_size(), 1), device=device, dtype=torch.uint8)
    graph.execute(pack | dict(zip(outputs, results, strict=True)), workspace, handle=_handle())


@cache
def _handle() -> Any:
    import cudnn

    return cudnn.create_handle()


def _begun(word: str) -> tuple[Any, Any, Any]:
    """A graph, its 8-bit type and its float32 type."""
    import cudnn

    kind = {"e4m3": cudnn.data_type.FP8_E4M3, "e5m2": cudnn.data_type.FP8_E5M2}[word]
    single = cudnn.data_type.FLOAT
    graph = cudnn.pygraph(io_data_type=kind, intermediate_data_type=single, compute_data_type=single, handle=_handle())
    return graph, kind, single


def _mask(causal: bool) -> dict[str, Any]:
    import cudnn

    return {"diagonal_alignment": cudnn.diagonal_alignment.TOP_LEFT} | ({"right_bound": 0} if causal else {})


def _strides(shape: Shape) -> Shape:
    _, heads, rows, dim = shape
    return heads * rows * dim, rows * dim, dim, 1


def _tensor(graph: Any, name: str, shape: Shape, kind: Any) -> Any:
    return graph.tensor(name=name, dim=shape, stride=_strides(shape), data_type=kind)


def _finish(graph: Any, outputs: Sequence[Any], shapes: Sequence[Shape], kinds: Sequence[Any]) -> None:
    """Say what the outputs are, and build the graph."""
    import cudnn

    for place, shape, kind in zip(outputs, shapes, kinds, strict=True):
        place.set_output(True).set_dim(shape).set_stride(_strides(shape)).set_data_type(kind)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.check_support()
    graph.build_plans()


@cache
def _forward_graph(shapes: tuple[Shape, ...], word: str, scale: float, causal: bool) -> Graph:
    graph, kind, single = _begun(word)
    inputs = {name: _tensor(graph, name, shape, kind) for name, shape in zip("qkv", shapes, strict=True)}
    numbers = {name: _tensor(graph, name, SCALARS, single) for name in FORWARD}
    outputs = list(graph.sdpa_fp8(**inputs, **numbers, generate_stats=True, attn_scale=scale, **_mask(causal)))
    _finish(graph, outputs, [shapes[0], (*shapes[0][:3], 1), SCALARS, SCALARS], [kind, single, single, single])
    return graph, inputs | numbers, outputs


@cache
def _backward_graph(shapes: tuple[Shape, ...], word: str, scale: float, causal: bool) -> Graph:
    graph, kind, single = _begun(word)
    of_queries, of_keys = shapes
    sizes = {"q": of_queries, "k": of_keys, "v": of_keys, "o": of_queries, "dO": of_queries}
    inputs = {name: _tensor(graph, name, shape, kind) for name, shape in sizes.items()}
    inputs["stats"] = _tensor(graph, "stats", (*of_queries[:3], 1), single)
    numbers = {name: _tensor(graph, name, SCALARS, single) for name in BACKWARD}
    outputs = list(graph.sdpa_fp8_backward(**inputs, **numbers, attn_scale=scale, **_mask(causal)))
    _finish(graph, outputs, [of_queries, of_keys, of_keys, *4 * [SCALARS]], [*3 * [kind], *4 * [single]])
    return graph, inputs | numbers, outputs


KERNEL = CudnnFp8
