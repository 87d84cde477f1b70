"""torchrun --nproc-per-node=4 reproduce_varlen.py: float32 errors of ring-flash-attn 0.1.8's varlen rings; gloo."""

# fmt: off
import inspect, sys, time, unittest.mock, torch, torch.distributed as dist  # noqa: E401, I001
from importlib import import_module
def weights(q, k, borders_q, borders_k, causal, lse=None):
    documents = [torch.arange(len(b) - 1).repeat_interleave(b.diff()) for b in (borders_q, borders_k)]
    hidden = (documents[0][:, None] != documents[1]) | torch.full((len(q), len(k)), causal).triu(1)
    scores = (torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5).masked_fill(hidden, -torch.inf)
    lse = scores.logsumexp(-1) if lse is None else lse
    return (scores - lse[..., None]).exp(), lse
def forward(q, k, v, cu_seqlens_q, cu_seqlens_k, causal, **_):  # in the place of flash-attn, which takes 16 bit only
    p, lse = weights(q, k, cu_seqlens_q, cu_seqlens_k, causal)
    return torch.einsum("hqk,khd->qhd", p, v), lse, None, None
def backward(dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, softmax_scale, causal, **_):
    time.sleep(0.2 if rank == 0 else 0)  # rank 0 is late: what the last rank sends to it waits
    p = weights(q, k, cu_seqlens_q, cu_seqlens_k, causal, softmax_lse)[0]
    ds = p * (torch.einsum("qhd,khd->hqk", dout, v) - (dout * out).sum(-1).T[..., None]) * softmax_scale
    for into, way, x in ((dq, "hqk,khd->qhd", k), (dk, "hqk,qhd->khd", q), (dv, "hqk,qhd->khd", dout)):
        into.copy_(torch.einsum(way, p if into is dv else ds, x))
both = type("", (), {f"_flash_attn{way}_{f.__name__}": f for way in ("", "_varlen") for f in (forward, backward)})
sys.modules.update({"flash_attn": both, "flash_attn.flash_attn_interface": both})
sys.modules["ring_flash_attn.adapters"] = unittest.mock.MagicMock()  # for transformers, not used
dist.init_process_group("gloo")
comm, rank, size = import_module("ring_flash_attn.utils").RingComm, dist.get_rank(), dist.get_world_size()
borders, commit, _ = torch.tensor([0, 64, 192, 256]).int(), comm.commit, torch.manual_seed(0)
q, k, v = truth = (inputs := torch.randn(4, 256, 2, 32))[:3].double().requires_grad_()
torch.einsum("hqk,khd->qhd", weights(q, k, borders, borders, True)[0], v).backward(inputs[3].double())
for ring, parts in (("ring_flash_attn_varlen", [rank]), ("zigzag_ring_flash_attn_varlen", [rank, 2 * size - 1 - rank])):
    mine = torch.cat([x.chunk(size * len(parts))[i] for x in torch.arange(256).split([64, 128, 64]) for i in parts])
    text = inspect.getsource(getattr(module := import_module(f"ring_flash_attn.{ring}"), f"{ring}_backward"))
    for remedy, old in ("none", ""), ("wait", ""), ("clone()", "to(torch.float32)"), ("q.dtype", "torch.bfloat16"):
        exec(text := text.replace(old, remedy) if old else text, vars(module))
        comm.commit = (lambda c: (commit(c), c.wait(), setattr(c, "_reqs", []))) if remedy == "wait" else commit
        leaves = [x[mine].requires_grad_() for x in inputs[:3]]
        getattr(module, f"{ring}_func")(*leaves, borders // size, 128 // size, causal=True).backward(inputs[3, mine])
        errors = torch.stack([(x.grad - t).norm() / t.norm() for x, t in zip(leaves, truth.grad[:, mine], strict=True)])
        dist.all_reduce(errors, dist.ReduceOp.MAX)
        print(f"{ring}, {remedy}: dq {errors[0]:.1e} dk {errors[1]:.1e} dv {errors[2]:.1e}\n" * (rank == 0), end="")
dist.destroy_process_group()
