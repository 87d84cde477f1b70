"""How large may the error of a healthy function be, element by element? The variance of what rounding makes.

Healthy is the loosest attention that is in use: autograd through products in the inputs' dtype (Hugging Face's eager
one), which rounds scores, weights, dP, dS and every result to it. Roundings are taken as independent with variance
u^2 x^2 (a uniform error has u^2 x^2 / 3 at most), and as errors of first order (Higham 2002, sections 2.2 and 3.1):

    s   3 roundings (product, scale, mask), and those of q and k where these are scaled or cast first
    p   (ds + rounding) p, less its mean over the row: out gets sum_j p_j ds_j (v_j - out); and what is common to a row,
        that of s - lse, where lse is rounded to the format of sums and partials are merged by it
    dS  p (dP - delta), with the errors of p, of dP, of delta (that of the rounded out), and two roundings
    sums in float32 of n terms: n / 3 u32^2 times the square of the sum of the terms' sizes

A call over W ranks may round a running result W times. Small numbers have an error of half the smallest one.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from accuracy.core.dtype import FORMATS, accumulation_dtype
from accuracy.live.mask import Mask
from accuracy.reference.float64 import Reference

ROWS = 512
LOGARITHM = 25.0  # unit roundoffs that a library's exp and log are off by (torch on a CPU)


@dataclass(frozen=True)
class Policy:
    """u: unit roundoff of what is rounded; sums: of sums; least: the smallest number's half; merges: W - 1."""

    u: float
    sums: float
    least: float
    merges: int = 0

    @classmethod
    def of(cls, dtype: str, merges: int, tf32: bool = False) -> "Policy":
        """Of functions that round to a dtype; tf32: products of float32 round their terms to 11 bits."""
        form = FORMATS[dtype]
        u = 2.0**-11 if tf32 and dtype == "float32" else form.unit_roundoff
        least = 2.0 ** (form.min_exponent - form.precision)
        return cls(u, FORMATS[accumulation_dtype(dtype)].unit_roundoff, least, merges)


def variances(
    policy: Policy, mask: Mask, q: Tensor, k: Tensor, v: Tensor, dout: Tensor, reference: Reference
) -> dict[str, Tensor]:
    """Of out, lse, dq, dk and dv, in the reference's shapes, float64. q, k, v, dout: as the reference takes them."""
    made = {name: torch.zeros_like(getattr(reference, name)) for name in ("out", "lse", "dq", "dk", "dv")}
    heads, share = q.shape[2], q.shape[2] // k.shape[2]
    for item in range(q.shape[0]):
        for head in range(heads):
            key, value = (x[item, :, head // share].double() for x in (k, v))
            mine = _Head(policy, mask, key, value, item, head)
            for first in range(0, q.shape[1], ROWS):
                rows = slice(first, min(first + ROWS, q.shape[1]))
                mine.add(made, rows, q[item, rows, head].double(), dout[item, rows, head].double(), reference)
    rounds = (1 + policy.merges) * policy.u**2
    for name, x in made.items():
        if name != "lse":
            x += rounds * getattr(reference, name).square() + policy.least**2
    return made


@dataclass(frozen=True)
class _Head:
    policy: Policy
    mask: Mask
    k: Tensor
    v: Tensor
    item: int
    head: int

    def add(self, made: dict[str, Tensor], rows: slice, q: Tensor, dout: Tensor, reference: Reference) -> None:
        """The rows' shares of everything."""
        k, v, item, head = self.k, self.v, self.item, self.head
        u, n = self.policy.u**2, self.policy.sums**2 / 3
        least, scale = self.policy.least**2, self.mask.facts.scale
        kv = head // (reference.out.shape[2] // reference.dk.shape[2])
        out, lse, delta = reference.out[item, rows, head], reference.lse[item, head, rows, None], reference.delta
        delta = delta[item, head, rows, None]
        s = scale * q @ k.T
        ds = u * (3 * s.square() + 2 * scale**2 * q.square() @ k.square().T)
        ds += n * q.shape[1] * (scale * q.abs() @ k.abs().T).square()
        cap = self.mask.facts.softcap
        slope = torch.ones_like(s)
        if cap:
            slope = 1 - (s / cap).tanh().square()
            s = cap * (s / cap).tanh()
            ds = ds * slope.square() + u * s.square()
        added = self.mask.block(item, head, rows.start, rows.stop).to(s.device)
        p = (s + added).softmax(-1).nan_to_num(nan=0.0)  # rows that see no key
        p2 = p.square()
        w = p2 * (ds + u) + least
        spread = w @ v.square() - 2 * out * (w @ v) + out.square() * w.sum(1, keepdim=True)
        d_out = spread.clamp(min=0) + u * (p2 @ v.square()) + n * len(k) * (p @ v.abs()).square()
        top = s.masked_fill(added.isneginf(), 0).abs().amax(1, keepdim=True)
        of_row = (1 + lse.square() + top.square()).nan_to_num(posinf=0.0)
        common = self.policy.sums**2 * of_row  # of exp(s - lse)
        d_out += common * out.square()
        made["out"][item, rows, head] = d_out
        exact = self.policy.sums**2 * (LOGARITHM**2 + len(k) / 3) + common
        made["lse"][item, head, rows] = (p2 * ds).sum(1) + exact[:, 0]
        t = dout @ v.T
        dt = u * t.square() + n * q.shape[1] * (dout.abs() @ v.abs().T).square() + least
        d_delta = (dout.square() * (d_out + u * out.square())).sum(1, keepdim=True) + (p2 * dt).sum(1, keepdim=True)
        apart = (t - delta).square()
        relative = ds + u + (p2 * ds).sum(1, keepdim=True) + common
        gradient = p * (t - delta) * slope
        own = (p2 * (dt + relative * apart) + least * apart) * slope.square() + 2 * u * gradient.square() + least
        size, alike = scale * gradient.abs(), p * slope
        made["dq"][item, rows, head] = scale**2 * (own @ k.square() + d_delta * (alike @ k).square())
        made["dq"][item, rows, head] += common * reference.dq[item, rows, head].square()
        made["dq"][item, rows, head] += n * len(k) * (size @ k.abs()).square()
        made["dk"][item, :, kv] += scale**2 * (own + alike.square() * d_delta).T @ q.square()
        made["dk"][item, :, kv] += u * (scale * gradient.T @ q).square() + n * len(k) * (size.T @ q.abs()).square()
        made["dv"][item, :, kv] += (p2 * relative + least).T @ dout.square() + u * (p.T @ dout).square()
        made["dv"][item, :, kv] += n * len(k) * (p.T @ dout.abs()).square()
