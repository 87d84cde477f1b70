"""A script of about 20 lines, and its data, that shows a fault with torch alone: exit status 1 while it is there.

A capture proves some faults by itself, without running anything again: a row of out, lse or dq depends on its own q and
dout and on the keys that it sees; a row of dk or dv on its own k and v and on the queries that see it, whose lse and
delta (float64) stand for the keys that are left out.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import jinja2
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from accuracy.core.errors import ConfigError
from accuracy.core.number import count
from accuracy.core.plugins import load_function
from accuracy.live.call_on_disk import Call
from accuracy.live.functions import KNOWN
from accuracy.live.verdict import SHORT
from accuracy.runtime.arguments import parameters, takes_any_word
from accuracy.runtime.layout import arranged, canonical, lse_in

CAUSAL, SCALE = ("causal", "is_causal"), ("softmax_scale", "scale", "sm_scale", "scaling")
MASK, LENGTHS = ("attn_mask", "attention_mask", "mask"), ("cu_seqlens", "cu_seqlens_q", "cu_seqlens_k")


@dataclass(frozen=True)
class Rerun:
    """name: `package.module:function` or `FILE.py:function`, called as fn(q, k, v, *, causal, softmax_scale, ...), each
    word only where it has it; layout: of its tensors."""

    name: str
    layout: str = "bshd"

    @property
    def function(self) -> Callable[..., Any]:
        """Loaded once. Raises ConfigError."""
        try:
            return load_function(self.name).function
        except ValueError as error:
            raise ConfigError(str(error)) from error

    def arguments(self, call: Call) -> dict[str, Any]:
        """The words of a call beside q, k and v. Raises ConfigError where the function has none for what is asked."""
        known, facts = parameters(self.function), call.facts
        if known is None:
            names = next((each.parameters for each in KNOWN if each.path == self.name), ())
        else:  # any words: what the captured call gave
            names = tuple(dict.fromkeys((*known, *(facts.words if takes_any_word(known) else ()))))
        words: dict[str, Any] = {**dict.fromkeys(CAUSAL, facts.causal), **dict.fromkeys(SCALE, facts.scale)}
        words |= {"group": None, "enable_gqa": True, "softcap": facts.softcap or 0.0, "dropout_p": 0.0}
        if facts.documents:
            ends = torch.tensor([0, *facts.documents], device=call.tensors["q"].device).cumsum(0).int()
            words |= dict.fromkeys(LENGTHS, ends)
            words |= dict.fromkeys(("max_seqlen", "max_seqlen_q", "max_seqlen_k"), max(facts.documents))
        if facts.window:
            words["window_size"] = tuple(-1 if x is None else x for x in facts.window)
        if "mask" in call.tensors:
            words |= dict.fromkeys(MASK, call.tensors["mask"])
        needed = {"a mask": (MASK, facts.mask), "documents": (LENGTHS, facts.documents),
                  "a window": (("window_size",), facts.window), "causal": (CAUSAL, facts.causal)}  # fmt: skip
        for what, (any_of, present) in needed.items():
            if present and not {*any_of} & {*names}:
                raise ConfigError(f"fn={self.name} takes no {' or '.join(any_of)}, but the capture has {what}")
        return {name: words[name] for name in names if name in words}

    def results(self, call: Call) -> Call:
        """The call with what the function returns, and the gradients where it has any; arguments as `call` has them."""
        given = [arranged(call.tensors[name], self.layout).detach().requires_grad_() for name in "qkv"]
        returned = self.function(*given, **self.arguments(call))
        parts = tuple(returned) if isinstance(returned, tuple | list) else (returned,)
        out = parts[0]
        named = {"out": canonical(out, self.layout).detach()}
        lse = lse_in(parts[1:], call.tensors["q"])
        if lse is not None:
            named["lse"] = lse.detach().transpose(1, 2)
        if "dout" in call.tensors and out.requires_grad:
            gradients = torch.autograd.grad(out, given, arranged(call.tensors["dout"], self.layout).to(out.dtype))
            named |= {f"d{name}": canonical(x, self.layout) for name, x in zip("qkv", gradients, strict=True)}
        return Call(call.facts, call.tensors | named)


T = TypeVar("T")
BY_KEY = ("dk", "dv")
TEMPLATE = Path(__file__).parent / "page" / "reduced.py.jinja"


def write(path: Path, what: str, call: Call, tensor: str, data: dict[str, Tensor], limit: float,
          run: Rerun | None) -> Path:  # fmt: skip
    """Write `path` and the data beside it. call: what the data are of; run: the function that the script calls, None:
    it compares what was captured; limit: the relative error beyond which there is a fault."""
    (batch, rows, heads, dim), keys = data["q"].shape, data["k"].shape[1]
    queries = count(rows, "query", "queries")
    about = {
        # ASCII, as names in a captured file may hold anything; the first line fixes the encoding: none of them can
        "comment": "\n".join(f"# {ascii(line)[1:-1]}" for line in what.splitlines()),
        "size": f"{batch} x {queries}, {count(keys, 'key')}, {count(heads, 'head')} of {dim}",
        "scale": repr(call.facts.scale), "softcap": call.facts.softcap, "by_key": "lse" in data, "tensor": tensor,
        "limit": f"{limit:.2g}", "bound": f"{limit:.6g}", "run": run,
    }  # fmt: skip
    if run is not None:
        source, _, name = run.name.rpartition(":" if ":" in run.name else ".")
        turned = {"bhsd": ".transpose(1, 2)", "sbhd": ".transpose(0, 1)", "thd": "[0]"}.get(run.layout, "")
        words = ", ".join(f"{key}={_literal(value)}" for key, value in run.arguments(call).items())
        file = repr(str(Path(source).resolve())) if source.endswith(".py") else ""
        about |= {"source": source, "name": name, "path": file, "words": words, "turned": turned}
        about["back"] = "[None]" if run.layout == "thd" else turned
    template = jinja2.Template(TEMPLATE.read_text(), trim_blocks=True, keep_trailing_newline=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        save_file(data, path.with_suffix(".safetensors"))
    except SafetensorError as error:
        raise ConfigError(f"{path} cannot be written ({' '.join(str(error).split())[:200]}); choose another") from error
    path.write_text(template.render(about), encoding="utf-8")
    return path


def data_of(call: Call) -> dict[str, Tensor]:
    """Of a candidate: everything that its script needs to call a function again."""
    rows = call.tensors["q"].shape[1]
    items, heads = call.tensors["mask"].shape[:2] if "mask" in call.tensors else (1, 1)
    added = [torch.stack([call.mask.block(item, head, 0, rows) for head in range(heads)]) for item in range(items)]
    data = {name: call.tensors[name] for name in ("q", "k", "v")} | {"dout": call.dout, "mask": torch.stack(added)}
    return {name: x.detach().cpu().contiguous() for name, x in data.items()}


def _literal(value: Any) -> str:
    if isinstance(value, Tensor):
        return 'data["mask"]' if value.dim() == 4 else f"torch.tensor({value.tolist()}, dtype={value.dtype})"
    return f'float("{value}")' if isinstance(value, float) and not math.isfinite(value) else repr(value)


def few_rows(call: Call, tensor: str, row: Mapping[str, Any]) -> tuple[int, int, list[int]]:
    """Batch, head and tokens of the fewest rows that are still wrong; row: of the judgement, its worst place. Of a
    tensor that is wrong as a whole only, all rows of the worst head."""
    exact, x = call.exact(tensor), call.tensors[tensor].double()
    allowed = call.rounding()
    square, limits = (x - exact).nan_to_num(nan=torch.inf).square(), allowed.rows(tensor).square()
    square = square.sum(-1) if exact.dim() == 4 else square
    seen = ~call.reference.lse.transpose(1, 2).isneginf()
    square = square if tensor in BY_KEY else square.where(seen, 0.0)
    of_heads = (square.sum(1) / limits.sum(1)).flatten()
    batch, head = divmod(int(of_heads.argmax()), exact.shape[2])
    mine, limit = square[batch, :, head], limits[batch, :, head]
    short = row["label"] == "precision_floor" and 0 < row["significand_bits"] <= SHORT

    def fails(tokens: Sequence[int]) -> bool:
        kept = list(tokens)
        most = float(allowed.whole(tensor, lambda x: x[batch, kept, head][None]))
        return short or float(mine[kept].sum()) > most**2 or bool((mine[kept] > limit[kept]).any())

    worst = [int((mine / limit).nan_to_num(nan=0.0).argmax())]
    tokens = list(range(len(mine)))
    return batch, head, worst if fails(worst) else smallest(tokens, fails) if fails(tokens) else tokens


def sliced(call: Call, tensor: str, batch: int, head: int, tokens: Sequence[int]) -> dict[str, Tensor]:
    """The data of a script: q, k, v, dout, what the model gave, and the mask as numbers that are added (Sq, S); for dk
    and dv lse and delta too."""
    q, k, v = (call.tensors[name][batch] for name in "qkv")
    share, keep = q.shape[1] // k.shape[1], list(tokens)
    queries = head * share if tensor in BY_KEY else head
    heads = list(range(queries, queries + share)) if tensor in BY_KEY else [head]
    kv = head if tensor in BY_KEY else head // share
    added = torch.stack([call.mask.block(batch, each, 0, q.shape[0]) for each in heads])
    seen = added.isfinite().any(0)
    if tensor in BY_KEY:
        rows, columns = seen[:, keep].any(1).nonzero().flatten().tolist(), keep
    else:
        rows, columns = keep, seen[keep].any(0).nonzero().flatten().tolist()
    data = {
        "q": q[rows][:, heads][None], "k": k[columns][:, [kv]][None], "v": v[columns][:, [kv]][None],
        "dout": call.dout[batch, rows][:, heads][None], "mask": added[:, rows][:, :, columns][None],
        "given": call.tensors[tensor][batch, keep][:, [head]][None],
    }  # fmt: skip
    if tensor in BY_KEY:
        lse, delta = (getattr(call.reference, name)[batch, heads][:, rows][None] for name in ("lse", "delta"))
        data |= {"lse": lse, "delta": delta}
    return {name: x.detach().cpu().contiguous() for name, x in data.items()}


def smallest(items: Sequence[T], fails: Callable[[list[T]], bool]) -> list[T]:
    """A part of `items`, in their order, that fails and of which no element can be left out (1-minimal). items: fails
    as a whole. Halves, quarters, ... are tried alone, then left out."""
    kept, parts = list(items), 2
    while len(kept) > 1:
        size = -(-len(kept) // parts)
        chunks = [kept[first : first + size] for first in range(0, len(kept), size)]
        without = [[*chain(*chunks[:place], *chunks[place + 1 :])] for place in range(len(chunks))]
        alone = next((chunk for chunk in chunks if fails(chunk)), None)
        if alone is not None:
            kept, parts = alone, 2
        elif (rest := next((rest for rest in without if len(chunks) > 2 and fails(rest)), None)) is not None:
            kept, parts = rest, max(2, len(chunks) - 1)
        elif size == 1:
            break
        else:
            parts = min(len(kept), 2 * parts)
    return kept
