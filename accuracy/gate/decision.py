"""Does the run pass? RunTable in, one item a cell and one exit status out, with notes for a reader."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from accuracy.core.errors import ConfigError
from accuracy.core.number import count
from accuracy.gate import Exit, judge, rules
from accuracy.gate.fingerprint import Entry, differences, hard, soft
from accuracy.gate.judge import FAILED, GRAVITY, INCOMPLETE, PASSED, SKIPPED, Item, percent
from accuracy.gate.statistics import DEPENDENT, RISE, TAIL, dependence
from accuracy.results import cell
from accuracy.results.cell import KEYS, Cell, Key
from accuracy.results.run_table import RunTable
from accuracy.verdict.evidence import SUBJECT
from accuracy.verdict.verdict import verdicts as verdicts_of

REFUSED = ("logic", "invalid")  # verdicts that no baseline can excuse


@dataclass(frozen=True)
class Decision:
    """items: the worst first. hard, soft: how the baseline's fingerprint differs; notes: what a reader must know.
    alone: how many cells have a kernel that no single device of the matrix runs."""

    run: RunTable
    baseline: RunTable | None
    items: tuple[Item, ...]
    hard: tuple[Entry, ...]
    soft: tuple[Entry, ...]
    notes: tuple[str, ...]
    exit: Exit
    alone: int = 0

    def count(self, state: str) -> int:
        """How many items are passed, failed, incomplete or skipped."""
        return sum(item.state == state for item in self.items)

    @property
    def by_floor(self) -> bool:
        """Whether the matrix has no single device at all, so that errors are told over the rounding floor."""
        return bool(self.alone) and self.alone == sum(item.cell is not None for item in self.items)

    @property
    def last_line(self) -> str:
        """`N passed, N failed, N skipped`; what is incomplete has not passed."""
        failed = self.count(FAILED) + self.count(INCOMPLETE)
        return f"{self.count(PASSED)} passed, {failed} failed, {self.count(SKIPPED)} skipped"


@dataclass(frozen=True)
class Question:
    """What is asked: a run, what it is compared with, and how strictly. part: the run is a part of the baseline's
    matrix, the rest of its cells and seeds is not missed, and other parts are asked about too. verdicts: label and
    sentence by cell."""

    run: RunTable
    baseline: RunTable | None = None
    second: RunTable | None = None
    require_baseline: bool = False
    part: bool = False
    verdicts: Mapping[Key, tuple[str, str]] = field(default_factory=dict)
    limits: rules.Limits = field(default_factory=rules.Limits)


def verdicts(run: RunTable) -> dict[Key, tuple[str, str]]:
    """Label and sentence of each cell that has one; a verdict is of all inputs of a variant, problem and dtype."""
    if run.results.empty:
        return {}
    names = [name for name in (*SUBJECT, "tensor") if name in KEYS]
    found = {
        tuple(row[name] for name in names): (str(row["label"]), str(row["sentence"]))
        for row in verdicts_of(run.results).to_dict("records")
    }
    keys = run.results[list(KEYS)].drop_duplicates().itertuples(index=False, name=None)
    subjects = {key: tuple(key[KEYS.index(name)] for name in names) for key in keys}
    return {key: found[subject] for key, subject in subjects.items() if subject in found}


def decide(question: Question) -> Decision:
    """Judge every cell. Raises ConfigError where the second look is none."""
    run, baseline, second = question.run, question.baseline, question.second
    other = differences(hard(baseline.about), hard(run.about)) if baseline else []
    comparable = baseline if baseline and not other else None
    warned = differences(soft(comparable.about), soft(run.about)) if comparable else []
    cells, base = cell.measured(run), cell.measured(comparable) if comparable else {}
    also = cell.varying([*cells, *base])
    findings = judge.first_look(cells, base, len(base) if question.part else 0)
    alone = rules.without_single_device(cells)
    items = []
    for key, measured in cells.items():
        by = f"no baseline, judged by {rules.used(measured, key in alone)}"
        item = Item(cell.named(key, also), "new", by, key, measured, base.get(key))
        if key in findings:
            item = replace(item, **findings[key]._asdict())
        items.append(_by_rules(item, question, key in alone))
    again = cell.measured(second) if second else {}
    if second is not None:
        _must_be_fresh(run, second)
        items = _look_again(items, question, again, base, len(findings))
    only_before = [key for key in base if key not in cells]
    items += rules.without_numbers(run, comparable, only_before, also, question.part)
    complete = all(item.state != INCOMPLETE for item in items)
    faults = (*run.faults, *(second.faults if second else ()))
    items += [Item(fault.name, "missing", fault.text) for fault in faults]
    items += rules.copied_seeds(cells, again, also)
    if base and comparable is not None:
        items += rules.other_inputs(run.results, comparable.results, also)
    if complete and not run.faults and not question.part:
        items += rules.seeds_left_out(cells, base, again, also)
    return Decision(
        run=run,
        baseline=baseline,
        items=tuple(sorted(items, key=lambda item: (item.order, item.name))),
        hard=tuple(other),
        soft=tuple(warned),
        notes=tuple(_notes(question, items, other, warned, alone)),
        exit=_exit(items, bool(cells), question.require_baseline, comparable is None),
        alone=len(alone),
    )


def _by_rules(item: Item, question: Question, alone: bool) -> Item:
    """The item with the gravest of what its baseline, its verdict and the portable rules say."""
    assert item.key is not None
    assert item.cell is not None
    label, sentence = question.verdicts.get(item.key, ("", ""))
    broken = rules.broken(item.cell, question.limits, alone)
    held = [each for each in broken if rules.accepted(each, item.baseline, question.limits)]
    found = [(item.label, item.reason), *([(label, sentence)] if label in REFUSED else [])]
    found += [(each.label, each.text) for each in broken if each not in held]
    item = item.but(*min(found, key=lambda pair: GRAVITY[pair[0]]))
    if held and item.state == PASSED:
        return item.but("accepted", f"{held[0].text}, as in the baseline; {item.reason}")
    return item


def _look_again(
    items: Sequence[Item], question: Question, again: Mapping[Key, Cell], base: Mapping[Key, Cell], family: int
) -> list[Item]:
    """The undecided with fresh seeds; whatever breaks a rule there breaks it."""
    looks = {
        item.key: (item.cell.joined(again[item.key]), again[item.key])
        for item in items
        if item.label == "undecided" and item.key and item.cell and item.key in again and again[item.key].y
    }
    findings = judge.second_look(looks, base, family) if looks else {}
    looked = []
    for item in items:
        fresh = again.get(item.key) if item.key and item.state in (PASSED, INCOMPLETE) else None
        broken = rules.broken(fresh, question.limits) if fresh else []
        found = [each for each in broken if not rules.accepted(each, item.baseline, question.limits)]
        if found:
            item = item.but(found[0].label, f"second look: {found[0].text}")
        elif item.key and item.key in findings:
            item = replace(item, **findings[item.key]._asdict(), cell=looks[item.key][0])
        looked.append(item)
    return looked


def _must_be_fresh(first: RunTable, second: RunTable) -> None:
    if other := differences(hard(first.about), hard(second.about)):
        raise ConfigError(f"the second look was measured elsewhere ({other[0]}); measure it where the first was")
    codes = [each.about["fingerprint"].get("code") for each in (first, second)]
    if codes[0] != codes[1]:
        raise ConfigError(f"the second look is of other code ({codes[1]}, not {codes[0]}); measure it with the same")
    if common := sorted(set(first.results["seed"]) & set(second.results["seed"])):
        raise ConfigError(f"the second look repeats seed {common[0]}; it needs fresh ones: {_fresh_seeds(first)}")


def _fresh_seeds(run: RunTable) -> str:
    """As many seeds as the run has, none of them its own: `seed=[8,9]`."""
    known = sorted({int(seed) for seed in run.results["seed"]})
    first = max(known, default=-1) + 1
    return f"seed=[{','.join(str(first + number) for number in range(max(2, len(known))))}]"


def _exit(items: Sequence[Item], measured: bool, required: bool, incomparable: bool) -> Exit:
    states, labels = {item.state for item in items}, {item.label for item in items}
    gravest_first = {
        Exit.LOGIC: "logic" in labels,
        Exit.REGRESSION: FAILED in states,
        Exit.INCOMPLETE: INCOMPLETE in states or not measured,
        Exit.NO_BASELINE: required and (incomparable or "new" in labels),
    }
    return next((status for status, holds in gravest_first.items() if holds), Exit.OK)


def _notes(
    question: Question, items: Sequence[Item], hard: Sequence[Entry], soft: Sequence[Entry], alone: set[Key]
) -> Iterator[str]:
    """What a reader must know beside the items, one sentence each. hard, soft: how the baseline's fingerprint
    differs."""
    if question.baseline is None:
        yield "no baseline was given: the portable rules decide alone"
    elif hard:
        yield f"the baseline is not comparable, the portable rules decide alone: {'; '.join(map(str, hard))}"
    elif soft:
        yield f"warning, measured in another environment: {'; '.join(map(str, soft))}"
    labels = Counter(item.label for item in items)
    known = [item.baseline for item in items if item.baseline is not None]
    if labels["new"] and known:
        them = "it" if labels["new"] == 1 else "them"
        yield f"{count(labels['new'], 'cell')} not in the baseline: the portable rules alone decide on {them}"
    by = Counter(rules.used(item.cell, item.key in alone) for item in items if item.cell and item.baseline is None)
    yield from (f"{count(number, 'cell')} judged by {words}" for words, number in by.items())
    yield from _doubts("the run", [item.cell for item in items if item.cell is not None])
    yield from _doubts("the baseline", known)
    degrees = min(judge.tails(known, judge.ERROR_ALONE).values(), default=TAIL)
    if degrees < TAIL:
        yield (
            f"noise over the baseline's seeds has heavy tails (Student's t of about {degrees:.0f} degrees): a single"
            " seed fails only far out; a larger problem has less of them"
        )
    if labels["improved"]:
        yield "some cells improved; accuracy accept RUN_FOLDER --to BASELINE --reason WHY keeps it so"
    if labels["undecided"]:
        again = _fresh_seeds(question.run)
        yield f"a second look settles the undecided: the same run with {again}, then --second ITS_FOLDER"
    if blind := [item for item in items if item.seen > RISE]:
        worst = max(blind, key=lambda item: item.seen)
        least = f"it takes {percent(worst.seen)}" if worst.seen < math.log(2) else "it takes more than twice the error"
        yield (
            f"{count(len(blind), 'cell')} spread too much over too few seeds for a rise of 10% to be caught surely"
            f" (in {worst.name} {least}); more seeds, or a larger problem, show it"
        )
    if any(item.cell and item.cell.y for item in items) and question.run.results["single_device_max"].isna().all():
        yield "the table has no single_device_max: the rule of the largest error was not applied"


def _doubts(whose: str, cells: Sequence[Cell]) -> Iterator[str]:
    """Why p-values do not hold: one seed, or neighbouring seeds that are alike. whose: the run's or the baseline's."""
    by_seeds = Counter(tuple(each.seeds) for each in cells if each.y)
    if not by_seeds:
        return
    seeds = max(by_seeds, key=lambda each: by_seeds[each])
    if len(seeds) == 1:
        yield f"{whose} has one seed: nothing tells chance from change; measure {rules.SEEDS} seeds"
    elif (p := dependence(np.array([each.values() for each in cells if tuple(each.seeds) == seeds]))) <= DEPENDENT:
        yield (
            f"neighbouring seeds of {whose} are alike (p = {p:.1g}): the tests take seeds as independent, so unchanged"
            " cells fail too often; give every seed inputs of its own"
        )
