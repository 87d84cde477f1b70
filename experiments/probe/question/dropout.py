"""Does it drop the weights that it is told to? Equal scores and V the identity: out is the matrix of weights itself."""

import torch

from accuracy.runtime.dropout import Dropout
from experiments.probe.base import DIM, SCALE, Answer, Subject

RATE, QUERIES = 0.5, 24  # 1 / (1 - RATE) / 64 is exact in every dtype


def ask(subject: Subject) -> Answer:
    """the mask that it was given, none, or another; out and dv, which see the same weights."""
    tokens = torch.arange(100, 100 + QUERIES), torch.arange(DIM)
    mask = Dropout(RATE, 7).at(*tokens)
    how = {"scale": SCALE, "causal": False, "dropout": mask}
    identity = torch.eye(DIM, dtype=torch.float64)[None, :, None, :]
    q, k, v = subject.given(subject.zeros(QUERIES)), subject.given(subject.zeros(DIM)), subject.given(identity)
    kernel, dtype = subject.kernel, subject.torch_dtype
    try:
        out, lse = kernel.forward(q, k, v, out_dtype=dtype, **how)  # type: ignore[arg-type]
    except TypeError:
        return Answer("takes no mask")
    dout = subject.given(identity[:, :QUERIES])
    _, _, dv = kernel.backward(dout, q, k, v, out, lse, gradient_dtype=dtype, **how)  # type: ignore[arg-type]
    expected = mask.kept(range(1), 1, identity)[0, 0] * mask.scale / DIM
    found = {"out": out[0, :, 0].double().cpu(), "dv": dv[0, :, 0, :QUERIES].double().cpu().T}
    names = {name: _name(x, expected) for name, x in found.items()}
    return Answer(names["out"] if len({*names.values()}) == 1 else f"out: {names['out']}, dv: {names['dv']}", names)


def _name(weights: torch.Tensor, expected: torch.Tensor) -> str:
    if torch.allclose(weights, expected, rtol=0.0, atol=1 / (4 * DIM)):  # a weight is 0, 1 / 64 or 2 / 64
        return "the mask that it is given"
    return "none: the mask is ignored" if bool((weights > 1 / (2 * DIM)).all()) else "another mask"
