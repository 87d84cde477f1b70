"""What the ranks of a run do: the first measures case after case, the others take part where it tells them to.

Every rank draws the inputs itself; the first gets out, lse, dq, dk and dv as tensors and writes the rows.
"""

import os
import threading
from collections.abc import Iterator, Sequence

from accuracy.core.case import Case
from accuracy.execute.plan import Planned, measured
from accuracy.execute.ranks import journal
from accuracy.execute.ranks.rank import END, MODES, PREPARE, Rank, Task
from accuracy.execute.ranks.rendezvous import Ranks
from accuracy.execute.worker import seconds_allowed, seconds_text, tell_changes, write
from accuracy.measurement.pipeline import Measured, Pipeline


def lead(task: Task, ranks: Ranks, pending: Sequence[Planned]) -> Iterator[tuple[Case, str]]:
    """The first rank's part: every pending case and its status, its rows in the folder by then."""
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        journal.note(task.folder, "launch")
    known = journal.read(task.folder)
    rank = Rank(task, ranks)
    pipeline = rank.pipeline
    numbers = {case.id: number for number, case in enumerate(task.cases)}
    for each in pending:
        case = each.case
        if case.id not in known.statuses:
            journal.note(task.folder, "began", case.id)
            reason = None if each.unsupported else known.reason(case.id) or journal.hopeless(case, task.cases, known)
            if not (each.unsupported or reason):
                rank.prepare(numbers[case.id])
            found = pipeline.failed(case, reason) if reason else _in_time(task, pipeline, each)
            changed = rank.changed()
            known.statuses[case.id] = write(task.folder, case, found)
            journal.note(task.folder, found.status, case.id)
            if changed:
                tell_changes(case, changed)
                os._exit(journal.LOST)
        yield case, known.statuses[case.id]
    for case_id, status in known.statuses.items() - journal.read(task.folder).statuses.items():
        journal.note(task.folder, status, case_id)  # a function removed the folder
    rank.tell(0, END)


def _in_time(task: Task, pipeline: Pipeline, each: Planned) -> Measured:
    """Measure a case. Beside what ranks do together the first computes the reference and simulates: where that takes
    longer than the case may, this process ends, and the launcher starts all of them anew."""
    if task.callers:
        return measured(pipeline, each)
    seconds = seconds_allowed(each.case, task.case_seconds)
    if each.case.world == "processes":
        seconds += len(MODES) * task.seconds

    def end() -> None:
        journal.note(task.folder, "final", f"took longer than {seconds_text(each.case, task.case_seconds)}")
        os._exit(journal.LOST)

    timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), end)
    timer.daemon = True
    timer.start()
    try:
        return measured(pipeline, each)
    finally:
        timer.cancel()


def follow(task: Task, ranks: Ranks) -> None:
    """Every other rank's part, until the first is through."""
    rank = Rank(task, ranks)
    while True:
        number, what = rank.tell()
        if what == END:
            return
        rank.draw(number)
        if what == PREPARE:
            rank.release()
        else:
            rank.take_part(what)
