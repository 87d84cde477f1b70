"""Does the run pass? RunTable in, one item a cell and one exit status out."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from accuracy.core.errors import ConfigError
from accuracy.gate import judge, rules, seeds
from accuracy.gate.exits import Exit
from accuracy.gate.fingerprint import Entry, differences, hard, soft
from accuracy.gate.item import FAILED, GRAVITY, INCOMPLETE, PASSED, SKIPPED, Item
from accuracy.gate.judge import CellFinding
from accuracy.gate.notes import fresh_seeds, notes
from accuracy.results import cell, table
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
    places = [KEYS.index(name) for name in names]
    said = {
        tuple(row[name] for name in names): (str(row["label"]), str(row["sentence"]))
        for row in verdicts_of(run.results).to_dict("records")
    }
    keys = run.results[list(KEYS)].drop_duplicates().itertuples(index=False, name=None)
    subjects = {key: tuple(key[place] for place in places) for key in keys}
    return {key: said[subject] for key, subject in subjects.items() if subject in said}


def decide(question: Question) -> Decision:
    """Judge every cell. Raises ConfigError where the second look is none."""
    run, baseline = question.run, question.baseline
    apart = differences(hard(baseline.about), hard(run.about)) if baseline else []
    comparable = baseline if baseline and not apart else None
    cells, base = cell.measured(run), cell.measured(comparable) if comparable else {}
    also = cell.varying([*cells, *base])
    findings = judge.first_look(cells, base, len(base) if question.part else 0)
    alone = rules.without_single_device(cells)
    items = [_judge(key, cells[key], base.get(key), findings.get(key), question, also, key in alone) for key in cells]
    if question.second is not None:
        items = _look_again(items, question, base, len(findings), also)
    items += _without_numbers(run, comparable, cells, base, also, question.part)
    items += _strange(question, cells, base, also, all(item.state != INCOMPLETE for item in items))
    soft_apart = differences(soft(baseline.about), soft(run.about)) if comparable and baseline else []
    return Decision(
        run=run,
        baseline=baseline,
        items=tuple(sorted(items, key=lambda item: (item.order, item.name))),
        hard=tuple(apart),
        soft=tuple(soft_apart),
        notes=tuple(notes(run, baseline, items, apart, soft_apart, alone)),
        exit=_exit(items, bool(cells), question, comparable),
        alone=len(alone),
    )


def _judge(
    key: Key,
    measured: Cell,
    baseline: Cell | None,
    found: CellFinding | None,
    question: Question,
    also: list[str],
    alone: bool,
) -> Item:
    """One cell: its verdict, the portable rules, its baseline, in that order."""
    by = f"no baseline, judged by {rules.used(measured, alone)}"
    item = Item(cell.named(key, also), "new", by, key, measured, baseline)
    if found is not None:
        item = replace(item, **vars(found))
    said = [(item.label, item.reason)]
    label, sentence = question.verdicts.get(key, ("", ""))
    if label in REFUSED:
        said.append((label, sentence))
    broken = rules.broken(measured, question.limits, alone)
    held = [each for each in broken if rules.accepted(each, baseline, question.limits)]
    said += [(each.label, each.text) for each in broken if each not in held]
    item = item.but(*min(said, key=lambda pair: GRAVITY[pair[0]]))
    if held and item.state == PASSED:
        return item.but("accepted", f"{held[0].text}, as in the baseline; {item.reason}")
    return item


def _look_again(
    items: Sequence[Item], question: Question, base: Mapping[Key, Cell], family: int, also: list[str]
) -> list[Item]:
    """The undecided with fresh seeds; whatever breaks a rule there breaks it."""
    assert question.second is not None
    _must_be_fresh(question.run, question.second)
    fresh, heavy = cell.measured(question.second), judge.tails(base.values())
    looked = []
    for item in items:
        again = fresh.get(item.key) if item.key else None
        if again is not None and item.state in (PASSED, INCOMPLETE):
            broken = rules.broken(again, question.limits)
            found = [each for each in broken if not rules.accepted(each, item.baseline, question.limits)]
            if found:
                item = item.but(found[0].label, f"second look: {found[0].text}")
            elif item.label == "undecided" and item.key and item.cell and again.y:
                both = item.cell.joined(again)
                settled = judge.second_look(both, again, base[item.key], family, heavy)
                item = replace(item, **vars(settled), cell=both)
        looked.append(item)
    return looked


def _must_be_fresh(first: RunTable, second: RunTable) -> None:
    if apart := differences(hard(first.about), hard(second.about)):
        raise ConfigError(f"the second look was measured elsewhere ({apart[0]}); measure it where the first was")
    codes = [each.about["fingerprint"].get("code") for each in (first, second)]
    if codes[0] != codes[1]:
        raise ConfigError(f"the second look is of other code ({codes[1]}, not {codes[0]}); measure it with the same")
    if common := sorted(set(first.results["seed"]) & set(second.results["seed"])):
        raise ConfigError(f"the second look repeats seed {common[0]}; it needs fresh ones: {fresh_seeds(first)}")


def _strange(
    question: Question, cells: Mapping[Key, Cell], base: Mapping[Key, Cell], also: list[str], whole: bool
) -> Iterator[Item]:
    """What is not as the run ended with it, and seeds that were left out. whole: nothing else is missing."""
    second = question.second
    again = cell.measured(second) if second else {}
    for fault in (*question.run.faults, *(second.faults if second else ())):
        yield Item(fault.name, "missing", fault.text)
    yield from seeds.copied(cells, again, also)
    if base and question.baseline is not None:
        yield from seeds.other_inputs(question.run.results, question.baseline.results, also)
    if whole and not question.run.faults and not question.part:
        yield from seeds.left_out(cells, base, again, also)


def _exit(items: Sequence[Item], measured: bool, question: Question, comparable: RunTable | None) -> Exit:
    states = {item.state for item in items}
    unknown = comparable is None or any(item.label == "new" for item in items)
    gravest_first = {
        Exit.LOGIC: any(item.label == "logic" for item in items),
        Exit.REGRESSION: FAILED in states,
        Exit.INCOMPLETE: INCOMPLETE in states or not measured,
        Exit.NO_BASELINE: question.require_baseline and unknown,
    }
    return next((status for status, holds in gravest_first.items() if holds), Exit.OK)


def _without_numbers(
    run: RunTable,
    baseline: RunTable | None,
    cells: Mapping[Key, Cell],
    base: Mapping[Key, Cell],
    also: list[str],
    part: bool,
) -> Iterator[Item]:
    """Items for all of them; part: cells of the baseline that this run did not plan are not missed."""
    names = {**(cell.case_names(baseline) if baseline else {}), **cell.case_names(run)}
    found = set(run.results["case_id"])
    lost = [case for case in run.planned if case not in found]
    for case in lost:
        yield Item(names.get(case, f"case {case}"), "missing", "planned, and not in the table")
    for case, reason in cell.without_numbers(run, table.FAILED).items():
        yield Item(names[case], "broken", reason)
    yield from _unsupported(run, baseline, names)
    if baseline is not None:
        yield from _only_in_baseline(run, baseline, [key for key in base if key not in cells], also, part)
    if not run.about.get("ended") and not lost:
        yield Item("the run", "missing", "did not record its end: it was interrupted; repeat its command")


def _unsupported(run: RunTable, baseline: RunTable | None, names: Mapping[str, str]) -> Iterator[Item]:
    """One item a setting, whatever its seeds; one that the baseline measured is missed."""
    measured_before = (
        set(baseline.planned).difference(cell.without_numbers(baseline, table.UNSUPPORTED)) if baseline else ()
    )
    found: dict[tuple[str, str, str], None] = {}
    for case, reason in cell.without_numbers(run, table.UNSUPPORTED).items():
        name = names[case].rpartition(" seed ")[0]
        if case in measured_before:
            found[name, "missing", f"the baseline has it, and now: {reason}"] = None
        else:
            found[name, "unsupported", reason] = None
    yield from (Item(*each) for each in found)


def _only_in_baseline(
    run: RunTable, baseline: RunTable, keys: list[Key], also: list[str], part: bool
) -> Iterator[Item]:
    """Cells of the baseline whose cases the run did not plan, or measured without that tensor."""
    if not keys:
        return
    planned = set(run.planned)
    present = set(run.results.loc[run.results["tensor"].notna(), "case_id"])
    rows = baseline.results[baseline.results["tensor"].notna()]
    cases = {key: set(ids) for key, ids in rows.groupby(list(KEYS), sort=False, dropna=False)["case_id"]}
    for key in keys:
        if cases[key] & present:
            yield Item(cell.named(key, also), "missing", "the baseline has this tensor, the run has none", key)
        elif cases[key] and not cases[key] & planned and not part:
            yield Item(cell.named(key, also), "missing", "the baseline has it, the run did not plan it", key)
