"""Another project's attention as a system under test: any callable, its gradients from autograd.

    fn(q, k, v, *, causal, softmax_scale, group) -> out or (out, lse)

A function without `group` talks to the others in torch's default group, or it is one of one device: cases of several
ranks are unsupported. One without softmax_scale is measured where the problem's is D^-0.5.

q (B, S/W, H, D), k, v (B, S/W, Hk, D) and out are one rank's shards in the variant's sharding; group is the torch
process group of the case's ranks; out has q's dtype, lse (B, H, S/W) is natural log in any floating dtype. Other
layouts: `accuracy.runtime.layout`. The module that holds fn may say more:

    DISTRIBUTION              the installed distribution whose version belongs to the numbers, "ring-flash-attn"
    unsupported(case)             why fn cannot serve a case, or None
    surroundings(rank)        a context manager in which forward and backward run
    FEATURES                  by function the features of a problem that it knows: documents, which surroundings tell it

A user's function is given more where it has a word for it: a soft cap, a window, documents, and on one rank sinks and a
mask or a bias, whose gradients are measured too. docs/functions.md has the words, and what is given by the user alone.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Annotated, Any

import torch
from torch import Tensor

from accuracy.core import plugins
from accuracy.core.case import Case
from accuracy.core.dtype import ARITHMETIC, OneOf
from accuracy.core.errors import NOT_SHARED
from accuracy.core.fields import default_softmax_scale
from accuracy.core.sharding import SHARDINGS, UNEVEN, lengths_of
from accuracy.runtime import arguments, arithmetic
from accuracy.runtime.arguments import OF_PROBLEMS, mask_names, named, names, parameters, requires, takes, uncallable
from accuracy.runtime.collectives import may_share, shared
from accuracy.runtime.layout import LAYOUTS, PACKED, called_with, laid_out, returned
from accuracy.variant.base import WROTE, Rank, Schedule
from accuracy.world.base import Results
from accuracy.world.documents import packed, uncut
from accuracy.world.processes import ProcessesWorld, default_group


@dataclass(frozen=True)
class Options:
    """fn: `package.module.function`, `FILE.py:function`, or one that `accuracy.measure` was given; layout: of tensors
    (`accuracy.runtime.layout`); arithmetic: of its products, where coarser than its dtype, `float32` if no other is
    allowed; window: how it is told one (`accuracy.runtime.arguments.WINDOWS`), `none`; None: a diagnosis finds out;
    scale: `own` where it is told none and scales by D^-0.5."""

    fn: str = ""
    layout: Annotated[str, OneOf(*LAYOUTS)] = "bshd"
    arithmetic: Annotated[str, OneOf("float32", *ARITHMETIC)] | None = None
    window: Annotated[str, OneOf("none", *arguments.WINDOWS)] | None = None
    scale: Annotated[str, OneOf("own")] | None = None

    def __post_init__(self) -> None:
        """Raises ValueError where fn cannot be loaded or called so."""
        found = plugins.load_function(self.fn)
        if reason := uncallable(found.function, *called_with(self.layout)):
            raise ValueError(f"fn={self.fn} {reason}")


@dataclass(frozen=True)
class Graph:
    """What autograd keeps between forward and backward: out and the q, k, v, sinks and bias of which it was made.
    surroundings: in which the backward runs, as the forward did."""

    out: Tensor
    leaves: Mapping[str, Tensor]
    surroundings: Callable[[], AbstractContextManager[Any]]


NO_BACKWARD = ("is not implemented", "must implement either the backward")
"""In torch's message where an operation has no backward."""
REFUSED = "not support backward"
"""In that of one which refuses inputs that require grad, as flex_attention on a CPU."""


def attend(
    fn: Callable[..., Any], layout_name: str, q: Tensor, k: Tensor, v: Tensor, documents: Sequence[int] = (),
    is_known: bool = False, sinks: Sequence[float] = (), sharding: str = "contiguous", wanting: str = "", **how: Any,
) -> tuple[Tensor, Tensor | None, Graph]:  # fmt: skip
    """Call fn in its layout; documents: their borders; is_known: that it shares its work, so nobody asks; sinks: a
    logit a head, which it gets as a tensor (H,); sharding: of the tokens here; wanting: the word of `how` whose tensor
    wants a gradient; how: causal, softmax_scale, group, and other words of fn's. Return out (B, S/W, H, D), lse (B, H,
    S/W) or None, and the graph."""
    grouped, group, over_ranks = q.shape[2] != k.shape[2], how.get("group"), None
    if layout_name in PACKED and group is not None and group.size() > 1 and not lengths_of(sharding):
        lengths = [end - begin for begin, end in pairwise(documents or (0, q.shape[1] * group.size()))]
        whole = layout_name == "thd_whole" or names(fn, "cu_seqlens_padded")
        told = {"by_slices": arguments.by_slices(fn), "whole": whole}
        over_ranks = packed(lengths, q, sharding, group, how["causal"], **told)

    def result_of(tensors: Mapping[str, Tensor]) -> Any:
        own = [x if over_ranks is None else over_ranks.moved(x) for x in (tensors[name] for name in "qkv")]
        given, keywords = laid_out(layout_name, own[0], own[1], own[2], () if over_ranks else documents)
        keywords |= {name: x for name, x in tensors.items() if name not in "qkv"}
        told = named(fn, {**how, "grouped": grouped, **keywords, **(over_ranks.words if over_ranks else {})})
        for word, value in (over_ranks.of_keys if over_ranks else {}).items():
            told |= {name: value for name in arguments.OF_KEYS[word] if name in told}
        with _as_found(fn, group), torch.enable_grad(), unwritten(q, k, v):
            call = partial(fn, *given, **told)
            return call() if is_known else shared(fn, group, call)

    inputs = {"q": q, "k": k, "v": v}
    if sinks:
        inputs["sinks"] = torch.tensor(sinks, dtype=torch.promote_types(q.dtype, torch.float32), device=q.device)
    if wanting:
        inputs[wanting] = how[wanting]
    leaves = {name: x.detach().requires_grad_() for name, x in inputs.items()}
    try:
        result = result_of(leaves)
    except RuntimeError as error:
        if REFUSED not in str(error):
            raise
        result = result_of({name: x.detach() for name, x in inputs.items()})  # forward only
    with torch.enable_grad():
        out, lse = returned(result, layout_name, q, v.shape[-1])
        if over_ranks is not None:
            out = over_ranks.moved(out, back=True)
            lse = None if lse is None else over_ranks.moved(lse.transpose(1, 2), back=True).transpose(1, 2)
    return out.detach(), lse, Graph(out, leaves, lambda: _as_found(fn, group))


@contextmanager
def _as_found(fn: Callable[..., Any], group: Any) -> Iterator[None]:
    """The body runs as the user's process would run it; what it sets is undone. A function that takes no group finds
    the ranks of the case as torch's default group."""
    default = None if names(fn, "group") else group
    with arithmetic.settings_restored(), arithmetic.of_functions(), default_group(default):
        yield


def differentiate(graph: Graph, dout: Tensor) -> Results:
    """dq (B, S/W, H, D), dk, dv (B, S/W, Hk, D) as autograd gives them, with sinks dsink (1, 1, H), with a bias dbias,
    its queries before its heads, zero where out does not depend on these; None, each, where the function is forward
    only."""
    none = (None,) * 3
    if not graph.out.requires_grad:
        return none
    try:
        leaves = [*graph.leaves.values()]
        with graph.surroundings(), unwritten(*leaves, dout):
            found = torch.autograd.grad(graph.out, leaves, dout, materialize_grads=True)
    except RuntimeError as error:
        if any(mark in str(error) for mark in NO_BACKWARD):
            return none
        raise
    dq, dk, dv, *others = found
    dsink = [others.pop(0)[None, None] if "sinks" in graph.leaves else None] if others else []
    return dq, dk, dv, *dsink, *(x.transpose(1, 2) for x in others)


@contextmanager
def unwritten(*tensors: Tensor) -> Iterator[None]:
    """Raises RuntimeError where the body wrote to the tensors, through `.data` too, and puts their values back: the
    next case has the same inputs."""
    before = [x.detach().clone() for x in tensors]
    try:
        yield
    finally:
        written = [(x, kept) for x, kept in zip(tensors, before, strict=True) if not torch.equal(x, kept)]
        with torch.no_grad():
            for x, kept in written:
                x.copy_(kept)
    if written:
        raise RuntimeError(WROTE)


def _words(rank: Rank, fn: Callable[..., Any], keys: int) -> dict[str, Any]:
    """Return what fn is called with beside tensors and the group. keys: of all ranks; as many are no window."""
    sees, softcap = rank.visibility, rank.scores.softcap
    told: dict[str, Any] = {"causal": sees.causal}
    if rank.options.scale != "own":
        told["softmax_scale"] = rank.scale
    if softcap is not None:
        told["softcap"] = softcap
    forms = (rank.options.window, *arguments.window_forms(parameters(fn) or {}), "pair")
    form = next(each for each in forms if each not in (None, "none"))
    if sees.window is not None:
        told["window"] = arguments.window_told(form, sees.window, sees.causal)
    elif requires(fn, "window"):
        told["window"] = (-1, -1) if form == "pair" else keys
    return told


def _surroundings(rank: Rank) -> AbstractContextManager[Any]:
    given = getattr(plugins.load_function(rank.options.fn).module, "surroundings", None)
    return nullcontext() if given is None else given(rank)


class AnyCallable(Schedule):
    """The callable that `fn` names, in whatever surroundings its module asks for."""

    def unsupported(self, case: Case) -> str | None:
        """Needs process groups, one callable for both directions, and whatever the callable's module asks for."""
        variant, problem = case.variant, case.problem
        if variant.forward != variant.backward:
            return f"variant {variant.name} takes its gradients from autograd: set forward and backward to {__name__}"
        if case.world != "processes":
            return f"variant {variant.name} talks over torch.distributed; use world=processes"
        if dict(variant.options)["layout"] == "qkvpacked" and problem.heads != problem.heads_kv:
            return f"layout=qkvpacked needs problem.heads_kv={problem.heads}, not {problem.heads_kv}"
        found = plugins.load_function(str(dict(variant.options)["fn"]))
        module = found.module
        if case.world_size > 1 and not hasattr(module, "DISTRIBUTION") and not may_share(found.function):
            return (
                f"{variant.name} has no parameter group and nothing of torch.distributed in its file, {NOT_SHARED}:"
                " use world_size=1"
            )
        is_told = dict(variant.options).get("scale") != "own" and takes(found.function, "softmax_scale")
        if not is_told and problem.softmax_scale != default_softmax_scale(problem.head_dim):
            return f"variant {variant.name} takes no softmax_scale: set problem.softmax_scale=null, which is D^-0.5"
        if case.world_size > 1 and not hasattr(module, "DISTRIBUTION") and not arguments.by_slices(found.function):
            told = problem.padded(variant.sharding, case.world_size).documents
            may_pad = names(found.function, "cu_seqlens_padded")
            if told and (reason := uncut(told, variant.sharding, case.world_size, may_pad)):
                return f"variant {variant.name} {reason}"
        for word in arguments.WHERE_GIVEN:
            if getattr(problem, word) is None and requires(found.function, word):
                return f"variant {variant.name} cannot be called without {word}: give {word}=, or a default to its own"
        if lengths_of(variant.sharding) and hasattr(module, "DISTRIBUTION"):
            return f"variant {variant.name} has as many tokens on every rank; use its own sharding, or padding=end"
        says = getattr(module, "unsupported", None)
        return None if says is None else says(case)

    def knows(self, case: Case) -> tuple[str, ...]:
        """What the callable's module says of it."""
        options = dict(case.variant.options)
        found = plugins.load_function(str(options["fn"]))
        if hasattr(found.module, "DISTRIBUTION"):
            name = str(options["fn"]).rpartition(".")[2].rpartition(":")[2]
            known: tuple[str, ...] = getattr(found.module, "FEATURES", {}).get(name, ())
            return known
        has = parameters(found.function) or {}
        told = {
            "softcap": "softcap" in has,
            **{word: case.world_size == 1 and names(found.function, word) for word in OF_PROBLEMS},
            "window": options.get("window") != "none" and bool(arguments.window_forms(has)),
            "documents": options["layout"] in PACKED,
            "head_dim_v": "packed" not in str(options["layout"]),
            "cross_lengths": case.world_size == 1 and options["layout"] in ("bshd", "bhsd", "kvpacked"),
            "top_left": case.world_size == 1,
        }
        return tuple(name for name, known_here in told.items() if known_here)

    def missing(self, tensor: str) -> str:
        """See `Schedule.missing`."""
        if tensor == "lse":
            return "the function returns no lse"
        return f"no {tensor}: the function is forward only (its out does not require grad, or has no backward)"

    def load(self, case: Case) -> bool:
        """See `Schedule.load`: of packages that are known to, and not of a user's file."""
        module = plugins.load_function(str(dict(case.variant.options)["fn"])).module
        return bool(getattr(module, "load", bool)()) if hasattr(module, "DISTRIBUTION") else False

    def code(self, case: Case) -> str:
        """The callable's file and the version of what it calls."""
        found = plugins.load_function(str(dict(case.variant.options)["fn"]))
        name = getattr(found.module, "DISTRIBUTION", None)
        return f"{found.code}+{name}=={plugins.version(name)}" if name else found.code

    async def forward(self, rank: Rank, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor | None, Graph]:
        """See `Schedule.forward`: out, lse or None, the graph."""
        if not isinstance(rank.world, ProcessesWorld):
            raise TypeError("a callable needs ranks of torch.distributed")
        found = plugins.load_function(rank.options.fn)
        fn, is_package = found.function, hasattr(found.module, "DISTRIBUTION")
        how = _words(rank, fn, k.shape[1] * rank.world.size)
        layout, word, of_bias = rank.options.layout, "", rank.scores.dbias
        borders = rank.visibility.documents if layout in PACKED else ()
        if (mask := rank.scores.mask) is not None:
            word = mask_names(parameters(fn) or {}, mask.is_floating_point())[0]
            how[word] = mask if of_bias is None else mask[tuple(map(slice, of_bias.shape))]
        with _surroundings(rank):
            return attend(
                fn, layout, q, k, v, borders, is_package, rank.sinks, rank.sharding,
                wanting="" if of_bias is None else word, group=rank.world.group, **how,
            )  # fmt: skip

    async def backward(
        self, rank: Rank, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor | None, graph: Graph
    ) -> Results:
        """See `Schedule.backward`."""
        with _surroundings(rank):
            return differentiate(graph, dout)


SCHEDULE = AnyCallable(shardings=(*SHARDINGS, UNEVEN), options=Options, any_lse_dtype=True, own_sinks=True)
