"""A problem out of its configuration: what is given is checked, what is left out is filled in, equal ones are one."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from accuracy.config.checks import check
from accuracy.core.case import Problem
from accuracy.core.errors import ConfigError
from accuracy.core.fields import default_softmax_scale

MOST_HEADS = 1024  # that an error lists divisors up to


def problem_of(given: Mapping[str, Any]) -> Problem:
    """A checked problem; seqlen_q null means seqlen, heads_kv null heads, softmax_scale null 1/sqrt(head_dim);
    documents: lengths joined by +, as 100+412. Raises ConfigError."""
    left_out = {"heads_kv": given.get("heads"), "softmax_scale": 1.0}
    filled = {key: value for key, value in left_out.items() if given.get(key) is None}
    words = [] if given.get("documents") is None else str(given["documents"]).split("+")
    documents = tuple(int(word) if word.isdecimal() else 0 for word in words)
    problem = check(Problem, "problem", {**given, **filled, "documents": documents})
    _check(problem, given.get("documents"))
    of_v = problem.head_dim_v if problem.head_dim_v != problem.head_dim else None
    crossed = problem.queries != problem.seqlen
    windowed = problem.window is not None and problem.window < problem.seqlen - 1
    return replace(  # what changes nothing is left out, so that equal problems are one
        problem,
        softmax_scale=default_softmax_scale(problem.head_dim) if "softmax_scale" in filled else problem.softmax_scale,
        mask="causal" if problem.mask == "causal_top_left" and not crossed else problem.mask,
        seqlen_q=problem.seqlen_q if crossed else None,
        window=problem.window if windowed else None,
        head_dim_v=of_v,
        documents=documents if len(documents) > 1 else (),
    )


def _check(problem: Problem, documents: object) -> None:
    keys, queries, mask, window = problem.seqlen, problem.queries, problem.mask, problem.window
    rules = (
        (problem.heads % problem.heads_kv != 0,
         f"heads_kv={problem.heads_kv} does not divide problem.heads={problem.heads}; allowed:"
         f" {', '.join(str(n) for n in range(1, min(problem.heads, MOST_HEADS) + 1) if problem.heads % n == 0)}"),
        (mask == "causal" and queries > keys,
         f"seqlen_q={queries} is above problem.seqlen={keys}: under a causal mask the first queries would see no key;"
         f" allowed: 1 to {keys}, or problem.mask=full"),
        (window is not None and queries != keys and mask == "causal_top_left",
         "window has no problem.mask=causal_top_left: some queries would see no key; use causal"),
        (window is not None and queries != keys and mask == "full",
         "window with problem.mask=full needs as many queries as keys: problem.seqlen_q=null"),
        (problem.documents and (min(problem.documents) < 1 or sum(problem.documents) != keys),
         f"documents={documents!r}; allowed: lengths from 1, joined by +, that sum to"
         f" problem.seqlen={keys}, as {keys - keys // 3}+{keys // 3}, or null"),
        (problem.padding is not None and queries != keys,
         "padding needs as many queries as keys: problem.seqlen_q=null"),
        (problem.documents and queries != keys,
         "documents needs as many queries as keys: problem.seqlen_q=null"),
    )  # fmt: skip
    for broken, text in rules:
        if broken:
            raise ConfigError(f"problem.{text}")
