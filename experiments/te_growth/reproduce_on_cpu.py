"""python reproduce_on_cpu.py: what 16-bit accumulators cost a ring. Needs torch alone.

A rank's queries meet the keys of one rank after another, in blocks as flash-attn computes them. out is corrected and
added as in TransformerEngine 2.20.2 (context_parallel.py, lines 180-212), dq as `dq.add_(dq_)`; float32 is the remedy.
"""

import torch

S, D = 4096, 64


def block(q, k, v, dout, lse, delta):  # float32 inside, bfloat16 results
    scores = q @ k.T * D**-0.5
    own = scores.logsumexp(-1, keepdim=True)
    dq = (scores - lse).exp() * (dout @ v.T - delta) @ k * D**-0.5
    return ((scores - own).exp() @ v).bfloat16(), own, dq.bfloat16()


def ring(size, dtype):  # out and dq of the queries after all steps, kept in `dtype` between them
    keys = zip(k.chunk(size), v.chunk(size), strict=True)
    steps = [block(q, *each, dout, lse.float(), delta.float()) for each in keys]
    out, total, dq = steps[0][0].to(dtype), steps[0][1], steps[0][2].to(dtype)
    for block_out, own, block_dq in steps[1:]:
        new = total.logaddexp(own)
        out = (out * (total - new).exp() + block_out * (own - new).exp()).to(dtype)
        total, dq = new, (dq + block_dq).to(dtype)
    return out.bfloat16(), dq.bfloat16()


torch.manual_seed(0)
k, v, q, dout = (torch.randn(n, D).bfloat16().float() for n in (S, S, 512, 512))
scores = q.double() @ k.double().T * D**-0.5
out, lse = scores.softmax(-1) @ v.double(), scores.logsumexp(-1, keepdim=True)
delta = (dout * out).sum(-1, keepdim=True)
truth = out, scores.softmax(-1) * (dout.double() @ v.double().T - delta) @ k.double() * D**-0.5
for size in (1, 2, 4, 8, 16, 32, 64):
    for dtype in (torch.bfloat16, torch.float32):
        found = zip(ring(size, dtype), truth, strict=True)
        ratios = [(a - t).norm() / (t.bfloat16() - t).norm() for a, t in found]
        print(size, "ranks, sums in", dtype, "error over rounding once: out {:.2f}, dq {:.2f}".format(*ratios))
