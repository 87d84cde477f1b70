"""Scores the rules of `rules.py`, and accuracy.assert_close, on planted faults and on healthy schedules.

    python experiments/tolerances/score.py reports/tolerances

A fault is caught where a rule refuses a tensor in a dtype that it knows, on Gaussian inputs at 4 ranks (or where the
fault executes); a healthy setting (schedule, ranks, dtype, inputs, kernel) fails where a rule refuses a tensor of it.
Zeros: every tensor is zero, on Gaussian inputs and on torch.rand with a sum as the loss, which is how torch tests.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from accuracy.bound.limits import Limits, beyond, limits
from accuracy.bound.policy import loosest
from accuracy.bound.running import bounds
from accuracy.config.compose import compose
from accuracy.core import plugins
from accuracy.core.case import Case
from accuracy.core.dtype import tensor_dtype
from accuracy.core.errors import ConfigError, WrongResult
from accuracy.execute.plan import plan
from accuracy.execute.settle import read_settled
from accuracy.measurement.pipeline import Pipeline
from accuracy.measurement.targets import Named, Targets
from accuracy.reference.cache import Cache
from accuracy.reference.float64 import Reference, seen_keys
from accuracy.runtime.arithmetic import make_exact
from accuracy.runtime.sharding import cut, token_map
from accuracy.simulate.program import simulate
from accuracy.world.simulated import RankFailed
from tests.fault import measure
from tests.fault.planted import PARTS

rules = plugins.load(str(Path(__file__).with_name("rules.py")))
RULES, Given = rules.RULES, rules.Given
OURS = "accuracy.assert_close"
TENSORS = ("out", "lse", "dq", "dk", "dv")
DTYPES = ("bfloat16", "float16", "float32")
HEALTHY = ("single_device", "ring", "zigzag", "striped", "llama3", "ulysses")
INPUTS = ("gaussian", "peaked", "attention_sink", "sum_loss", "tied")
WITHOUT_GRIDS = ("also=null", "conditions=false")


def plans(variants: dict[str, object], *words: str) -> list[Case]:
    config = compose(*measure.SMALL, *words, *WITHOUT_GRIDS)
    config["variant"] = variants
    return [each.case for each in plan(read_settled(config), free_bytes=None) if each.unsupported is None]


def returned(case: Case, targets: Targets) -> Named:
    """out, lse, dq, dk, dv of all ranks in token layout, float64."""
    shards = [cut(x, case.variant.sharding, case.world_size) for x in targets.inputs.tensors]
    ran = simulate(case, list(zip(*shards, strict=True))).results
    found = {}
    for place, name in enumerate(TENSORS):
        ranks = [each[place].detach().double() for each in ran]
        ranks = [x.transpose(1, 2) if name == "lse" else x for x in ranks]
        tokens = token_map(case.variant.sharding, case.problem.length(name), case.world_size)
        whole = torch.empty_like(targets.reference[name])
        for rank, x in enumerate(ranks):
            whole[:, tokens[rank]] = x
        found[name] = whole
    return found


def plain(case: Case, targets: Targets) -> Named:
    """Attention as it is written down, all in the inputs' dtype; k is scaled (flash-attention's reorder_ops)."""
    problem = case.problem
    q, k, v = (x.detach().clone().requires_grad_() for x in targets.inputs.tensors[:3])
    keys, values = (x.repeat_interleave(problem.heads // problem.heads_kv, 2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, keys * problem.softmax_scale)
    if problem.softcap is not None:
        scores = (scores / problem.softcap).tanh() * problem.softcap
    seen = seen_keys(problem.queries, problem.seqlen, **problem.seen_by)
    key = torch.arange(problem.seqlen)
    hidden = (key < seen[:, :1]) | (key >= seen[:, 1:])
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1).to(v.dtype)
    out = torch.einsum("bhqk,bkhd->bqhd", weights, values)
    gradients = torch.autograd.grad(out, (q, k, v), targets.inputs.dout)
    return {name: x.detach().double() for name, x in zip(("out", "dq", "dk", "dv"), (out, *gradients), strict=True)}


def allowed(case: Case, targets: Targets) -> dict[str, Limits]:
    """The limits of `assert_close`."""
    problem, exact = case.problem, targets.reference
    first = {name: exact[name].transpose(1, 2) for name in ("lse", "delta")}
    reference = Reference(**{name: exact[name] for name in ("out", "dq", "dk", "dv")}, **first)
    q, k, v, dout = targets.inputs.tensors
    found = bounds(
        q, k, v, dout, reference, loosest(case.dtype, case.world_size), scale=problem.softmax_scale, **problem.seen_by,
        softcap=problem.softcap, sinks=problem.sink_logits,
    )  # fmt: skip
    return {
        name: limits(bound, getattr(reference, name), tensor_dtype(name, case.dtype), name != "lse")
        for name, bound in found.items()
    }


_KEPT: dict[tuple[object, ...], tuple[Named, dict[str, Limits]]] = {}


def compared_with(case: Case, targets: Targets) -> tuple[Named, dict[str, Limits]]:
    """Plain attention in 16 bits, and the limits of `assert_close`, once for each problem."""
    key = case.problem, case.inputs, case.seed, case.dtype, case.world_size
    if key not in _KEPT:
        _KEPT[key] = plain(case, targets) if case.dtype in rules.SHORT else {}, allowed(case, targets)
    return _KEPT[key]


def refused(case: Case, targets: Targets, x: Named) -> Iterator[str]:
    """The rules that refuse some tensor; of those that know the dtype."""
    exact, single, rounded = targets.reference, targets.single_device(case), targets.rounded
    lower, limit = compared_with(case, targets)
    gqa = case.problem.heads != case.problem.heads_kv
    for name, rule in RULES.items():
        if case.dtype in rule.dtypes and not all(
            finite(x[tensor]) and rule.passes(
                Given(tensor, case.dtype, x[tensor], exact[tensor], rounded[tensor].double(), lower.get(tensor),
                      single[tensor].double(), case.world_size, gqa)
            )
            for tensor in rule.tensors
        ):  # fmt: skip
            yield name
    for tensor, each in x.items():
        heads_first = (y.transpose(1, 2) if tensor == "lse" else y for y in (each, exact[tensor]))
        if beyond(*heads_first, limit[tensor]):
            yield OURS
            return


def finite(x: Tensor) -> bool:
    return bool(x.isfinite().all())


def faults() -> pd.DataFrame:
    """By fault: which rules catch it in some dtype."""
    pipeline, rows = Pipeline("tolerances", Cache(None, 0.0)), []
    for name, fault in PARTS.items():
        where = [word for word in fault.where if word != "~also"]
        words = [*measure.KERNEL, "inputs=gaussian", f"dtype=[{','.join(DTYPES)}]", "world_size=4", *where]
        caught: set[str] = set()
        ran = 0
        try:
            cases = plans({name: measure.node(name)}, *words)
        except ConfigError as error:
            print("left out", name, str(error)[:100], file=sys.stderr)
            continue
        for case in cases:
            targets = pipeline.targets(case)
            if case.dtype not in DTYPES or case.world_size < 2:
                continue
            try:
                x = returned(case, targets)
            except (RankFailed, WrongResult):  # it raises, or the shape or dtype is wrong: any comparison refuses it
                caught |= {*RULES, OURS}
                ran += 1
                continue
            ran += 1
            caught |= set(refused(case, targets, x))
        if ran:
            rows.append({"fault": name, **{rule: rule in caught for rule in (OURS, *RULES)}})
    return pd.DataFrame(rows)


def healthy() -> pd.DataFrame:
    """By setting: which rules fail it; None where a rule does not know the dtype."""
    pipeline, rows = Pipeline("tolerances", Cache(None, 0.0)), []
    nodes = {name: measure.node(name) for name in HEALTHY}
    words = (
        f"dtype=[{','.join(DTYPES)}]",
        "world_size=[1,4]",
        f"inputs=[{','.join(INPUTS)}]",
        "kernel=[eager,torch_math]",
    )
    for case in plans(nodes, *words):
        targets = pipeline.targets(case)
        found = set(refused(case, targets, returned(case, targets)))
        knows = {name: case.dtype in rule.dtypes for name, rule in RULES.items()} | {OURS: True}
        setting = {"variant": case.variant.name, "dtype": case.dtype, "inputs": case.inputs.name, "seed": case.seed}
        verdict = {name: name in found if known else None for name, known in knows.items()}
        rows.append(setting | {"kernel": case.kernel.name, "world_size": case.world_size} | verdict)
    return pd.DataFrame(rows)


def zeros() -> pd.DataFrame:
    """By rule and inputs: the tensors of which all-zero ones pass in some dtype."""
    pipeline, rows = Pipeline("tolerances", Cache(None, 0.0)), []
    words = ("problem.seqlen=1024", "problem.heads=2", "problem.heads_kv=2", "problem.head_dim=32", "problem.mask=full")
    scale = "problem.softmax_scale=0.17677669529663687"
    for inputs in ("gaussian", "sum_loss"):
        for case in plans({"ring": measure.node("ring")}, *words, scale, f"inputs={inputs}", "world_size=4",
                          f"dtype=[{','.join(DTYPES)}]", "kernel=eager"):  # fmt: skip
            targets = pipeline.targets(case)
            right = {name: targets.rounded[name].double() for name in TENSORS}
            for tensor in ("out", "dq", "dk", "dv"):
                found = set(refused(case, targets, right | {tensor: torch.zeros_like(right[tensor])}))
                for name in (OURS, *RULES):
                    known = name == OURS or (case.dtype in RULES[name].dtypes and tensor in RULES[name].tensors)
                    rows.append({"rule": name, "inputs": inputs, "dtype": case.dtype, "tensor": tensor,
                                 "passes": name not in found if known else None})  # fmt: skip
    return pd.DataFrame(rows)


def summary(caught: pd.DataFrame, failed: pd.DataFrame, zero: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for name in (OURS, *RULES):
        of = zero[(zero["rule"] == name) & zero["passes"].eq(True)]
        passes = sorted({f"{inputs} {tensor}" for inputs, tensor in zip(of["inputs"], of["tensor"], strict=True)})
        known = failed[name].dropna()
        rows.append({
            "rule": name, "source": "this package" if name == OURS else RULES[name].source,
            "looks at": "out, lse, gradients" if name == OURS else ", ".join(RULES[name].tensors),
            "caught": f"{int(caught[name].sum())} of {len(caught)}",
            "healthy failed": f"{int(known.astype(bool).sum())} of {len(known)}",
            "zeros pass": "; ".join(passes) or "none",
        })  # fmt: skip
    return pd.DataFrame(rows)


def main(folder: Path) -> None:
    make_exact()
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    caught = faults()
    caught.to_csv(folder / "faults.csv", index=False)
    zero = zeros()
    failed = healthy()
    by = ["variant", "kernel", "world_size", "dtype", "inputs", "seed"]
    failed.sort_values(by)[[*by, OURS, *RULES]].to_csv(folder / "healthy.csv.gz", index=False)
    found = summary(caught, failed, zero)
    found.to_csv(folder / "rules.csv", index=False)
    print(found.drop(columns="source").to_string(index=False))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
