"""What does a user's function take, and compute in? It is called a few times before a diagnosis is planned.

Kernels mostly take 16 bits alone. The further grids of experiment=diagnose are in float32 and float64, where a fault
shows best; a function that refuses these would be asked a quarter of the questions. So its further grids get the dtypes
that it takes. The main grid keeps all four: what it refuses is a row with its own words.

Where each row of out is one row of v (inputs `copied`), out shows what products are computed in
(`accuracy.verdict.floor`). The function's cases are then held to that (`arithmetic`).
A window that is a number counts the keys behind a query's own, or all that it sees: both are tried (`window`).
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pandas as pd

from accuracy.config.read import Configuration
from accuracy.config.resolve import EVERYWHERE
from accuracy.core.case import Part, Problem, Variant, options_text
from accuracy.core.dtype import EXACT_IN
from accuracy.core.plugins import load_function
from accuracy.core.sharding import parts_of
from accuracy.execute import shapes
from accuracy.execute.plan import Planned
from accuracy.execute.run import planned
from accuracy.results.table import ALL_RANKS, NOT_TAKEN, OK
from accuracy.runtime import given_mask
from accuracy.runtime.arguments import may_scale, parameters, requires, window_forms
from accuracy.verdict.floor import TF32, WIDE, arithmetic_of

Ask = Callable[[Configuration], pd.DataFrame]
Answered = tuple[Configuration, list[Planned]]
Tables = tuple[pd.DataFrame, pd.DataFrame]
MOSTLY_TAKEN = "bfloat16"  # the dtype in which the hardest shapes are asked, before it is known what is taken
FEW, MANY = 16, 33_024
"""Queries; keys, a multiple of 128."""
WINDOW, MOST_OF_WINDOW = 10, 0.05
"""Keys on either side; the error of out that rounding to bfloat16 stays below, where one key of eleven makes 0.3."""


def with_answers(configuration: Configuration, ask: Ask) -> Answered:
    """Return the configuration with what its functions answered, and the cases that they refused.

    Functions say what they compute in; further grids have dtypes and shapes that they take, where nobody gave any. With
    float32 taken, a further grid keeps those of its dtypes that are; else it gets all that are: one dtype alone has
    none beside it that tells rounding from a fault. Nothing is asked of other variants, or where the author wrote the
    grids. ask: measures a configuration, by `run.measured_here` or on launched ranks.
    """
    functions = configuration.variants and all(dict(each.options).get("fn") for each in configuration.variants)
    wanted = configuration.also or "float32" in configuration.dtypes
    if not (functions and wanted and configuration.given_keys == EVERYWHERE) or configuration.paths_a:
        return configuration, []
    configuration = _with_windows(configuration, ask)
    tiny, given = _of_first_problem(configuration), shapes.given_of(configuration)
    main, parts = tiny.problems[0], _parts(tiny.variants, tiny.world_sizes[0])
    hardest = [each for each in shapes.hardest(main, given, parts) if configuration.also and each != main]
    rows, hard = _first_answers(tiny, ask, hardest)
    asked = replace(tiny, problems=tuple(hardest))
    for problem in () if _taken(tiny, rows) else shapes.easiest(main, given, parts):
        tiny = replace(tiny, problems=(problem,))
        rows, _ = _first_answers(tiny, ask)
        if _taken(tiny, rows):
            break
    if not _taken(tiny, rows) and (unscaled := _with_each(configuration, _told_no_scale)) != configuration:
        return with_answers(shapes.fitted(unscaled, shapes.Shapes(scales=False)), ask)
    configuration = _with_arithmetic(configuration, rows)
    taken = _taken(configuration, rows)
    if not taken or not configuration.also:
        return configuration, []
    refused: list[Planned] = []
    tiny = replace(tiny, variants=configuration.variants, dtypes=taken[:1])
    many = _of_many_keys(replace(tiny, dtypes=taken), ask)
    if not {*hard["dtype"]} <= {*taken}:
        hard = ask(asked := replace(tiny, problems=tuple(hardest)))
    if _failed(hard):
        asked = replace(asked, dtypes=tuple(hard["dtype"].unique()))
        known = {*hardest} - {each.case.problem for each in _refused(asked, hard)}
        if "float32" in taken:  # in which the grids measure every shape
            tiny = replace(tiny, dtypes=("float32",))
        configuration, refused = _in_shapes_taken(configuration, tiny, known, hardest[-1], ask)
    in_tf32 = any(dict(each.options).get("arithmetic") in TF32 for each in configuration.variants)
    if in_tf32 and {"float16"} <= {*taken} and "float64" not in taken:
        taken = tuple(each for each in taken if each != "float32")  # float16 has as many digits, and float32 sums
    if len(taken) < len(configuration.dtypes) and "dtype" not in configuration.given:
        grids = (replace(grid, dtypes=_of_grid(grid, taken)) for grid in configuration.also)
        configuration = replace(configuration, also=tuple(grids))
    return replace(configuration, also=(*_on_exact_inputs(configuration, taken), *many)), refused


def _on_exact_inputs(configuration: Configuration, dtypes: tuple[str, ...]) -> tuple[Configuration, ...]:
    """Return the further grids, those of explained cases on inputs that are exact in the 8 bits that the functions have
    q or k in, and the main problems on such inputs: there no error of 8 bits hides a fault. A kernel that takes the
    mean of all keys off first is exact where the keys come in pairs that add up to zero."""
    known = {str(dict(each.options).get("arithmetic")) for each in configuration.variants}
    exact = tuple(_inputs(name) for name in sorted({EXACT_IN[each] for each in known & EXACT_IN.keys()}))

    def explain(grid: Configuration) -> tuple[Part, ...]:
        return tuple(each for each in grid.observers if each.name == "explain")

    def in_pairs(grid: Configuration) -> bool:
        return not any(each.seqlen % 2 or each.documents or each.padding for each in grid.problems)

    if not exact or any(each.startswith("inputs") for each in configuration.given):
        return configuration.also
    grids = [replace(each, inputs=exact) if explain(each) and in_pairs(each) else each for each in configuration.also]
    if in_pairs(configuration) and (observers := next(filter(None, map(explain, grids)), ())):
        grids.append(replace(configuration, also=(), inputs=exact, dtypes=dtypes, observers=observers))
    return tuple(grids)


def _of_many_keys(tiny: Configuration, ask: Ask) -> list[Configuration]:
    """Return a grid of a few queries and more keys than 16 bits can count, whose scores are Gaussian or all alike; none
    where a function refuses, or does not know, fewer queries than keys, or the user gave what they need. In the first
    dtype and in float32, which tells rounding from a fault; in float16 the healthy lose digits: of so many keys each
    weight is below its normal numbers."""
    base, given = tiny.problems[0], shapes.given_of(tiny)
    causal = "mask" in given and base.mask != "full"
    if given - {"head_dim", "batch", "softmax_scale", "mask"} or causal or tiny.world_sizes != (1,):
        return []
    heads_kv = 2 if base.heads == base.heads_kv else 1
    few = replace(base, heads=2, heads_kv=heads_kv, batch=1, mask="full", seqlen=2 * FEW, seqlen_q=FEW)
    tiny = replace(tiny, dtypes=tuple(each for each in tiny.dtypes if each in (tiny.dtypes[0], "float32")))
    rows = ask(replace(tiny, also=(replace(tiny, problems=(few,)),)))
    out = rows[(rows["tensor"] == "out") & (rows["rank"] == ALL_RANKS) & (rows["seqlen_q"] == FEW)]
    if out.empty or not (out["error_rel"] < MOST_OF_WINDOW).all():
        return []
    inputs = (*tiny.inputs, _inputs("zero_query"))
    return [replace(tiny, problems=(replace(few, seqlen=MANY),), inputs=inputs, seeds=tiny.seeds[:1])]


def _in_shapes_taken(
    configuration: Configuration, tiny: Configuration, known: Collection[Problem], small: Problem, ask: Ask
) -> Answered:
    """Return the configuration in shapes that its functions take, and the cases that they refused. What is refused in a
    problem of the grids is asked again in one that differs in that alone. known: problems that they took beside that of
    `tiny`; small: one of an odd length, of which further head dims are asked."""
    base, parts = tiny.problems[0], _parts(tiny.variants, tiny.world_sizes[0])
    grids = configuration.also if base in configuration.problems else ()  # whose scale is taken
    plain = [each for grid in grids for each in grid.problems if not each.features and each.seqlen % parts == 0]
    of_grids = [*(shapes.with_dim(small, dim) for dim in shapes.DIMS), *plain]
    given, taken = shapes.given_of(configuration), [base, *known]
    asked = shapes.questions(base, given, parts, taken, of_grids)
    alone = shapes.questions(base, given, parts, taken)
    wrong = _refused_questions(tiny, asked, ask)
    if again := {question: alone[question] for question in wrong if alone[question] != asked[question]}:
        wrong = {name: each for name, each in wrong.items() if name not in again}
        wrong |= _refused_questions(tiny, again, ask)
    told = [replace(each, unsupported=f"{NOT_TAKEN}{question} ({each.unsupported})")
            for question, cases in wrong.items() for each in cases]  # fmt: skip
    return shapes.fitted(configuration, shapes.taken(base, {each: each not in wrong for each in asked})), told


def _refused_questions(tiny: Configuration, asked: Mapping[str, Problem], ask: Ask) -> dict[str, list[Planned]]:
    """Ask the questions; return the cases that were refused, by question."""
    # what was taken is asked with them: a plan of cases that are all refused is the user's mistake
    several = replace(tiny, problems=tuple(dict.fromkeys([*tiny.problems, *asked.values()])))
    refused = _refused(several, ask(several))
    found = {name: [each for each in refused if each.case.problem == problem] for name, problem in asked.items()}
    return {name: cases for name, cases in found.items() if cases}


def _refused(asked: Configuration, rows: pd.DataFrame) -> list[Planned]:
    """Return the cases that were asked and gave no number, each with the reason."""
    failed = _failed(rows)
    return [replace(each, unsupported=failed[each.case.id]) for each in planned(asked) if each.case.id in failed]


def _failed(rows: pd.DataFrame) -> dict[str, str]:
    """Return by case the reason of those without a number; a tensor that is not returned is no such."""
    whole = rows[rows["tensor"].isna() & (rows["status"] != OK)]
    return dict(zip(whole["case_id"].astype(str), whole["reason"].astype(str), strict=True))


def _with_arithmetic(configuration: Configuration, rows: pd.DataFrame) -> Configuration:
    """Return the configuration, its further grids too, with what each function was found to compute in."""
    found = {fn: arithmetic_of(own) for fn, own in rows.groupby("variant")}

    def known(each: Variant) -> Variant:
        said, shown = dict(each.options).get("arithmetic"), found.get(each.name)
        if not shown or (said and not (said in TF32 and shown in TF32)):
            return each
        return _with_option(each, "arithmetic", shown)

    return _with_each(configuration, known) if any(found.values()) else configuration


def _told_no_scale(variant: Variant) -> Variant:
    """Return a variant whose function scales by its own default, where it may have one."""
    return _with_option(variant, "scale", "own") if may_scale(_function(variant)) else variant


def _with_option(variant: Variant, name: str, value: str) -> Variant:
    return replace(variant, options=tuple(sorted({**dict(variant.options), name: value}.items())))


def _with_each(grid: Configuration, known: Callable[[Variant], Variant]) -> Configuration:
    """Return the configuration, its further grids too, with what is known of each variant."""
    also = tuple(_with_each(each, known) for each in grid.also)
    return replace(grid, variants=tuple(map(known, grid.variants)), also=also)


def _with_windows(configuration: Configuration, ask: Ask) -> Configuration:
    """Return the configuration with how each of its functions is told a window, where its signature leaves that open;
    one that refuses every form is asked nothing with a window."""
    unsaid = [each for each in configuration.variants if not dict(each.options).get("window")]
    forms = {each: found for each in unsaid if len(found := window_forms(parameters(_function(each)) or {})) > 1}
    masks = {each.mask for grid in (configuration, *configuration.also) for each in grid.problems if each.window}
    if not forms or not masks:
        return configuration
    tiny = _of_first_problem(configuration)
    main = tiny.problems[0]
    easiest = shapes.easiest(main, shapes.given_of(configuration), _parts(tiny.variants, tiny.world_sizes[0]))
    shown = product((main, *easiest[:1]), sorted(masks))
    asked = tuple(replace(each, window=main.window or WINDOW, mask=mask) for each, mask in shown)
    every = tuple(_with_option(each, "window", form) for each, found in forms.items() for form in found)
    rows = ask(replace(tiny, variants=every, problems=asked))
    rows = rows[(rows["tensor"] == "out") & (rows["rank"] == ALL_RANKS) & (rows["status"] == OK)]
    least = rows.groupby("options")["error_rel"].min()

    def known(each: Variant) -> Variant:
        told = [_with_option(each, "window", form) for form in forms.get(each, ())]
        taken = [each for each in told if options_text(each.options) in least]
        right = [each for each in taken if least[options_text(each.options)] < MOST_OF_WINDOW]
        return next(iter(right + taken), _with_option(each, "window", "none")) if told else each

    return _with_each(configuration, known)


def _function(variant: Variant) -> Callable[..., Any]:
    return load_function(str(dict(variant.options)["fn"])).function


def _of_grid(grid: Configuration, taken: tuple[str, ...]) -> tuple[str, ...]:
    if "float32" not in taken:
        again = max((int(dict(each.options).get("repeat") or 0) for each in grid.observers), default=0)
        return taken[:1] if again > 1 else taken  # a race is one in any dtype
    return tuple(each for each in grid.dtypes if each in taken) or ("float32",)


def _taken(configuration: Configuration, rows: pd.DataFrame) -> tuple[str, ...]:
    """Return the dtypes, among the configuration's, in which every function gave numbers."""
    cases = rows[rows["tensor"].isna() | rows["status"].eq(OK)]  # a tensor that is not returned is no refusal
    measured, refused = ({*cases.loc[cases["status"].eq(OK) == good, "dtype"]} for good in (True, False))
    return tuple(each for each in configuration.dtypes if each in measured - refused)


def _of_first_problem(configuration: Configuration) -> Configuration:
    """Return the configuration of one case of every function in each of the dtypes, in the first problem."""
    size = 1 if 1 in configuration.world_sizes else min(configuration.world_sizes)
    return replace(
        configuration, also=(), seeds=configuration.seeds[:1], world_sizes=(size,), observers=(), report=False,
        paths_b=(), inputs=(_inputs("gaussian", std=1.0),), unusable="record", problems=configuration.problems[:1],
    )  # fmt: skip


def _parts(variants: Sequence[Variant], size: int) -> int:
    """Return into how many equal parts so many ranks of every variant can cut a sequence."""
    return math.lcm(*(parts_of(each.sharding, size) for each in variants))


def _first_answers(tiny: Configuration, ask: Ask, problems: Sequence[Problem] = ()) -> Tables:
    """Return the table of Gaussian inputs and of those that show what v, q and k are rounded to; and that of further
    problems, in one dtype. All is one run: ranks start once for it."""
    main = tiny.problems[0]
    keys = main.seqlen if main.documents or not main.seqlen_q else min(main.seqlen, 128)  # not as many queries as keys
    plain = replace(main, attn_mask=given_mask.seeing_all(main), softcap=None, seqlen_q=None, seqlen=keys)
    shorter = tuple(each for each in tiny.dtypes if each != "float64") or tiny.dtypes  # which shows nothing further
    copied = replace(tiny, problems=(plain,), dtypes=shorter, inputs=(_inputs("copied", octaves=0.0),))
    wide = replace(copied, dtypes=("float32",), inputs=(_inputs("copied", octaves=WIDE),))
    shown = [] if any(requires(_function(each), "softcap") for each in tiny.variants) else [copied, wide]
    exact = _inputs("whole"), _inputs("few_digits")  # where q and k are so in 8 bits
    also = [replace(tiny, dtypes=shorter, inputs=exact), *shown[: 1 + ("float32" in tiny.dtypes)]]
    if problems:
        dtype = MOSTLY_TAKEN if MOSTLY_TAKEN in tiny.dtypes else tiny.dtypes[0]
        also.append(replace(tiny, problems=tuple(problems), dtypes=(dtype,)))
    rows = ask(asked := replace(tiny, also=tuple(also)))
    is_further = rows["case_id"].isin({each.case.id for each in planned(asked) if each.case.problem in problems})
    known = (rows["inputs"] == "gaussian") | (rows["status"] == OK)  # who takes few queries alone may refuse as many
    return rows[~is_further & known], rows[is_further]


def _inputs(name: str, **options: float) -> Part:
    return Part(name, f"accuracy.inputs.distributions:{name}", tuple(options.items()))
