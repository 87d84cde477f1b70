"""Cases that share a reference stay together, the longest first, and a free worker helps only where it pays."""

from collections import Counter

import pytest

from accuracy.core.case import Case
from accuracy.execute.plan import plan
from accuracy.execute.spread.schedule import Schedule, Spent
from accuracy.measure.pipeline import shared
from tests.measuring import TINY, configuration


def cases(*words: str) -> list[Case]:
    plans = plan(configuration(*TINY, "device=cpu", "variant=[ring,zigzag]", *words), None)
    return [each.case for each in plans if each.unsupported is None]


class Simulated:
    """Workers whose preparations and cases take given seconds, in a clock of their own."""

    def __init__(self, given: list[Case], workers: int, preparing: float, running: float = 1.0) -> None:
        schedule = Schedule(given)
        at: dict[int, object] = {}
        hands: dict[int, tuple[float, Spent]] = {}  # when it ends, and what it took
        self.measured: list[Case] = []
        self.references: Counter[object] = Counter()
        self.end = 0.0
        while len(schedule) or hands:
            for worker in sorted(set(range(workers)) - set(hands)):
                case = schedule.take(worker)
                if case is None:
                    continue
                new = at.get(worker) != shared(case)
                at[worker] = shared(case)
                self.references[shared(case)] += new
                self.measured.append(case)
                spent = Spent(preparing if new else 0.0, running)
                hands[worker] = self.end + spent.preparing + spent.running, spent
            worker = min(hands, key=lambda each: hands[each][0])
            self.end, spent = hands.pop(worker)
            schedule.note(worker, spent)


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("preparing", [0.0, 1.5, 1000.0])
def test_every_case_is_measured_once(workers: int, preparing: float) -> None:
    given = cases("seed=[0,1,2]", "world_size=[1,2,4]", "dtype=[bfloat16,float32]")
    told = [case.id for case in Simulated(given, workers, preparing).measured]
    assert sorted(told) == sorted(case.id for case in given)


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_a_reference_that_takes_longer_than_its_cases_is_computed_once(workers: int) -> None:
    given = cases("seed=[0,1,2,3]", "world_size=[1,2,4]")
    assert set(Simulated(given, workers, preparing=100.0).references.values()) == {1}


@pytest.mark.parametrize(("workers", "seeds"), [(2, "0"), (4, "0"), (4, "[0,1]"), (4, "[0,1,2,3,4,5]")])
def test_where_references_are_short_workers_are_busy_to_the_end(workers: int, seeds: str) -> None:
    """All but the last case of each worker: no schedule of whole cases can promise more."""
    given = cases(f"seed={seeds}", "world_size=[1,2,3,4,6,8,12]")
    one, many = (Simulated(given, number, preparing=0.25).end for number in (1, workers))
    preparations = 0.25 * (1 + seeds.count(","))  # a worker may have to prepare every group
    assert many <= one / workers + 1.0 + preparations


def test_the_group_with_most_to_compute_and_its_largest_world_come_first() -> None:
    given = cases("problem.seqlen=[48,96]", "world_size=[1,2,4]")
    first = Schedule(given).take(0)
    assert first is not None
    assert first.problem.seqlen == 96
    assert first.world_size == 4


def test_a_case_that_could_not_be_given_is_the_next_one() -> None:
    schedule = Schedule(cases("seed=0"))
    case = schedule.take(0)
    assert case is not None
    schedule.put_back(0, case)
    schedule.leave(0)
    assert schedule.take(1) == case


def test_the_cases_of_a_worker_that_is_gone_are_another_s() -> None:
    given = cases("seed=0")
    schedule = Schedule(given)
    schedule.take(0)
    schedule.leave(0)
    told = [schedule.take(1) for _ in given[1:]]
    assert all(told)
    assert schedule.take(1) is None
