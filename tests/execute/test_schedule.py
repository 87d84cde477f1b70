from collections import Counter

import pytest

from accuracy.core.case import Case
from accuracy.execute.plan import plan
from accuracy.execute.schedule import Schedule
from accuracy.measurement.observe import shared
from tests.measuring import TINY, configuration


def cases(*words: str) -> list[Case]:
    plans = plan(configuration(*TINY, "device=cpu", "variant=[ring,zigzag]", *words), None)
    return [each.case for each in plans if each.unsupported is None]


class Simulated:
    """Workers whose references and cases take given seconds, on a clock of their own."""

    def __init__(self, given: list[Case], workers: int, reference: float) -> None:
        schedule = Schedule(given)
        at: dict[int, object] = {}
        busy: dict[int, tuple[float, float]] = {}  # when the worker's case ends, and how long it takes
        self.measured: list[Case] = []
        self.references: Counter[object] = Counter()
        self.end = 0.0
        while len(self.measured) < len(given) or busy:
            for worker in sorted(set(range(workers)) - set(busy)):
                if (case := schedule.take(worker)) is not None:
                    new = at.get(worker) != shared(case)
                    at[worker] = shared(case)
                    self.references[shared(case)] += new
                    self.measured.append(case)
                    seconds = 1.0 + reference * new
                    busy[worker] = self.end + seconds, seconds
            worker = min(busy, key=lambda each: busy[each][0])
            self.end, seconds = busy.pop(worker)
            schedule.note(worker, seconds)


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("reference", [0.0, 1.5, 1000.0])
def test_every_case_is_measured_once(workers: int, reference: float) -> None:
    given = cases("seed=[0,1,2]", "world_size=[1,2,4]", "dtype=[bfloat16,float32]")
    assert Counter(case.id for case in Simulated(given, workers, reference).measured) == {c.id: 1 for c in given}


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_a_reference_that_takes_longer_than_its_cases_is_computed_once(workers: int) -> None:
    given = cases("seed=[0,1,2,3]", "world_size=[1,2,4]")
    assert set(Simulated(given, workers, reference=100.0).references.values()) == {1}


@pytest.mark.parametrize(("workers", "seeds"), [(2, "0"), (4, "0"), (4, "[0,1]"), (4, "[0,1,2,3,4,5]")])
def test_where_references_are_short_workers_are_busy_to_the_end(workers: int, seeds: str) -> None:
    """All but the last case of each worker: no schedule of whole cases can promise more."""
    given = cases(f"seed={seeds}", "world_size=[1,2,3,4,6,8,12]")
    one, many = (Simulated(given, number, reference=0.25).end for number in (1, workers))
    references = 0.25 * (1 + seeds.count(","))  # a worker may have to compute the reference of every group
    assert many <= one / workers + 1.0 + references


def test_the_group_with_most_to_compute_and_its_largest_world_come_first() -> None:
    first = Schedule(cases("problem.seqlen=[1024,2048]", "world_size=[1,2,4]")).take(0)
    assert first is not None
    assert (first.problem.seqlen, first.world_size) == (2048, 4)


def test_a_case_that_could_not_be_begun_goes_to_another_worker() -> None:
    schedule = Schedule(given := cases("seed=0"))
    case = schedule.take(0)
    assert case is not None
    schedule.put_back(0, case)
    schedule.leave(0)
    assert {each.id for each in (schedule.take(1) for _ in given) if each} == {each.id for each in given}
    assert schedule.take(1) is None
