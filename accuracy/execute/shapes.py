"""Which shapes does a user's function take, and the same questions in shapes that it takes.

Kernels refuse head dims below a tile, lengths that are no multiple of one, grouped heads, batches, or one of the masks.
A grid of a diagnosis whose shape is refused asks nothing; so its problems get the nearest shape that is taken, but for
what the user gave. Two problems come first that have every difficulty at once: a function that takes these is not asked
on. A kernel may be compiled anew for each shape, so the problems are those of the grids wherever they can be, and what
a function was seen to take is not asked again.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from accuracy.config.read import Configuration
from accuracy.core.case import Problem
from accuracy.core.fields import default_softmax_scale

DIMS = (8, 16, 24, 32, 40, 64, 128)
"""Head dims of the grids of a diagnosis."""
OF_TILES = (64, 128, 96, 80, 256, 192, 32, 16)
"""Head dims of kernels that take one alone, the most usual first."""
LENGTHS = {1: 43, 8: 40, 16: 48, 32: 96, 64: 192, 128: 128}
"""By what a length may have to be a multiple of, one that is no multiple of the next."""
MASKS = ("causal", "full")
SCALE = 0.2
"""The scale of the main problem in configs/experiment/diagnose.yaml; it is the default of no head dim."""
HEADS = {"heads", "heads_kv"}
FEW_HEADS = (2, 4)
"""Numbers of heads of the grids, by which the main problem's can be divided."""
GROUPED: dict[str, Any] = {"heads": 4, "heads_kv": 2}
"""Not of one key head, which broadcasts: a product that knows no groups takes it for all query heads."""
ONE_KEY_HEAD: dict[str, Any] = {"heads": 2, "heads_kv": 1}
KNOWN = {"batch", "seqlen", "head_dim", "mask", "softmax_scale", *HEADS}
"""What of a problem the questions are about; a user who gives more of it is asked nothing."""


@dataclass(frozen=True)
class Shapes:
    """What a function takes. dims: head dims, None: any; unit, heads: what lengths and numbers of heads are multiples
    of; one_key_head: no more; scales: others than D^-0.5."""

    dims: tuple[int, ...] | None = None
    unit: int = 1
    heads: int = 1
    scales: bool = True
    batches: bool = True
    grouped: bool = True
    one_key_head: bool = False
    masks: tuple[str, ...] = MASKS


def easiest(main: Problem, given: set[str], parts: int) -> list[Problem]:
    """Return problems that kernels with a least tile take: in both masks, with keys for each query head and for all
    alike; what the user gave of the main problem stays."""
    if given - KNOWN:
        return []
    kept = {key: getattr(main, key) for key in _with_heads(given) - {"softmax_scale"}}
    masks = [main.mask] if "mask" in given else sorted(MASKS, key=main.mask.__ne__)
    plain = replace(main, batch=1, seqlen=128 * parts, heads=2)
    if "softmax_scale" not in given:
        plain = replace(plain, softmax_scale=default_softmax_scale(main.head_dim))
    tiles = [with_dim(plain, dim) for dim in ([main.head_dim] if "head_dim" in given else OF_TILES)]
    every = ((tile, heads_kv, mask) for tile in tiles for heads_kv in (2, 1) for mask in masks)
    found = (replace(tile, **{"heads_kv": heads_kv, "mask": mask, **kept}) for tile, heads_kv, mask in every)
    return [*dict.fromkeys(found)]


def hardest(base: Problem, given: set[str], parts: int) -> list[Problem]:
    """Return two problems of the grids that have every difficulty: an odd head dim and a small one, an odd length, two
    sequences, grouped heads, both masks.

    given: what the user chose of a problem, which stays; none where it is more than they vary; parts: into how many
    the ranks cut a length.
    """
    if given - KNOWN:
        return []
    hard: dict[str, Any] = {"batch": 2, "seqlen": parts * LENGTHS[1], **GROUPED, "mask": MASKS[1]}
    small: dict[str, Any] = {"seqlen": parts * LENGTHS[1], **ONE_KEY_HEAD, "mask": MASKS[0], "softmax_scale": 0.25}
    fixed, found = _with_heads(given), []
    for changes, dim in ((hard, 40), (small, 8)):
        problem = base if "head_dim" in given else with_dim(base, dim)
        found.append(replace(problem, **{key: value for key, value in changes.items() if key not in fixed}))
    return found


def _with_heads(given: set[str]) -> set[str]:
    """Return what is given, with both numbers of heads where one of them is."""
    return given | (HEADS if HEADS & given else set())


def questions(
    base: Problem, given: set[str], parts: int, known: Collection[Problem] = (), grids: Sequence[Problem] = ()
) -> dict[str, Problem]:
    """Return problems that differ from one that is taken in one thing each, by what that is; not in what is given, nor
    in what a known problem has, which is taken, too. Head dims and numbers of heads are asked together in a problem of
    the grids where all else is known; where it is refused, ask each alone (without grids).

    A question about a length is named after that of each of the parts into which the ranks cut it.
    """
    found = {f"head_dim={dim}": with_dim(base, dim) for dim in DIMS if dim != base.head_dim}
    found |= {f"seqlen={length}": replace(base, seqlen=parts * length) for length in LENGTHS.values()}
    found = {name: problem for name, problem in found.items() if problem != base}
    found |= {f"mask={mask}": replace(base, mask=mask) for mask in MASKS if mask != base.mask}
    found |= {"batch=2": replace(base, batch=2)}
    if not HEADS & given:
        found |= {"heads_kv=2": replace(base, **GROUPED)}
        found |= {f"heads={heads}": _with_heads_of(base, heads) for heads in FEW_HEADS}
    if _has_own_scale(base):
        found[f"softmax_scale={SCALE}"] = replace(base, softmax_scale=SCALE)
    shown = set().union(*(_shown(each, parts) for each in known))
    found = {name: problem for name, problem in found.items() if name not in shown}
    asked = [(_shown(each, parts) & {*found}, each) for each in grids]
    for unknown, each in sorted(asked, key=lambda pair: -len(pair[0])):  # later ones win: those with fewest unknown
        if unknown <= {f"head_dim={each.head_dim}", f"heads={each.heads}"}:
            found |= dict.fromkeys(unknown, each)
    return {name: problem for name, problem in found.items() if name.partition("=")[0] not in given}


def _shown(problem: Problem, parts: int) -> set[str]:
    """Return the questions that a problem answers where it is taken."""
    length = problem.seqlen // parts
    unit = math.gcd(length, max(LENGTHS))
    shown = {f"head_dim={problem.head_dim}", f"mask={problem.mask}"}
    shown |= {f"seqlen={each}" for each in LENGTHS.values() if each % unit == 0}
    shown |= {f"heads={each}" for each in FEW_HEADS if each % math.gcd(problem.heads, 2 * max(FEW_HEADS)) == 0}
    shown |= {"batch=2"} if problem.batch > 1 else set()
    shown |= set() if _has_own_scale(problem) else {f"softmax_scale={SCALE}"}
    return shown | ({"heads_kv=2"} if 1 < problem.heads_kv < problem.heads else set())


def taken(base: Problem, right: Mapping[str, bool]) -> Shapes:
    """Return what is taken. right: by question, whether it gave numbers."""
    refused = {question for question, answered in right.items() if not answered}
    return Shapes(
        dims=tuple(dim for dim in sorted({*DIMS, base.head_dim}) if f"head_dim={dim}" not in refused),
        unit=next((unit for unit, length in LENGTHS.items() if f"seqlen={length}" not in refused), base.seqlen),
        heads=next((heads for heads in FEW_HEADS if f"heads={heads}" not in refused), base.heads),
        scales=f"softmax_scale={SCALE}" not in refused,
        batches="batch=2" not in refused,
        grouped="heads_kv=2" not in refused,
        one_key_head="heads_kv=2" in refused and base.heads_kv == 1 < base.heads,
        masks=tuple(mask for mask in MASKS if f"mask={mask}" not in refused),
    )


def fitted(grid: Configuration, shapes: Shapes) -> Configuration:
    """Return grids in shapes that are taken; what the user gave stays, and so do packed documents."""
    given = given_of(grid)
    sizes = math.lcm(*grid.world_sizes)
    problems = dict.fromkeys(_fitted(each, shapes, given, sizes) for each in grid.problems)
    allowed = {each: None for each in problems if "mask" in given or each.mask in (*shapes.masks, "causal_top_left")}
    others = [replace(each, mask=shapes.masks[0]) for each in problems] if shapes.masks else problems
    also = tuple(fitted(each, shapes) for each in grid.also)
    return replace(grid, problems=tuple(allowed or dict.fromkeys(others)), also=also)


def given_of(configuration: Configuration) -> set[str]:
    """Return what the user gave of the problem: its keys, `problem` for all of it."""
    return {key.removeprefix("problem.") for key in configuration.given if key.startswith("problem")}


def _fitted(problem: Problem, shapes: Shapes, given: set[str], sizes: int) -> Problem:
    if shapes.dims and problem.head_dim not in shapes.dims and not given & {"head_dim", "head_dim_v"}:
        larger = [dim for dim in shapes.dims if dim > problem.head_dim]
        problem = with_dim(problem, min(larger, default=max(shapes.dims)))
    if not shapes.grouped and not given & HEADS:
        problem = replace(problem, heads_kv=1 if shapes.one_key_head else problem.heads)
    if shapes.heads > FEW_HEADS[0] and not given & HEADS:
        problem = _with_heads_of(problem, _up(problem.heads, shapes.heads))
    if not shapes.scales and "softmax_scale" not in given:
        problem = replace(problem, softmax_scale=default_softmax_scale(problem.head_dim))
    if not shapes.batches and "batch" not in given:
        problem = replace(problem, batch=1)
    if shapes.unit == 1 or problem.documents or given & {"seqlen", "seqlen_q", "documents"}:
        return problem
    unit = shapes.unit * sizes
    queries = None if problem.seqlen_q is None else _up(problem.seqlen_q, unit)
    length = _up(problem.seqlen, unit) + unit * (problem.seqlen_q is not None)
    return replace(problem, seqlen=length, seqlen_q=queries)


def _with_heads_of(problem: Problem, heads: int) -> Problem:
    """Return a problem of another number of heads, in groups of about as many where these divide it."""
    return replace(problem, heads=heads, heads_kv=math.gcd(heads, problem.heads_kv * heads // problem.heads))


def with_dim(problem: Problem, dim: int) -> Problem:
    """Return a problem of another head dim, with the scale that belongs to it where the problem has its own's."""
    own = _has_own_scale(problem)
    return replace(problem, head_dim=dim, softmax_scale=default_softmax_scale(dim) if own else problem.softmax_scale)


def _has_own_scale(problem: Problem) -> bool:
    return math.isclose(problem.softmax_scale, problem.head_dim**-0.5)


def _up(length: int, unit: int) -> int:
    return -(-length // unit) * unit
