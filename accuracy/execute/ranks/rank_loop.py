"""What the ranks of a run do: the first measures case after case, the others take part where it tells them to.

Every rank draws the inputs itself; the first gets out, lse, dq, dk and dv as tensors and writes the rows.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from accuracy.core.case import Case
from accuracy.execute.plan import Planned, measured
from accuracy.execute.ranks import journal
from accuracy.execute.ranks.rank import END, LATE_SECONDS, MODES, PREPARE, Rank, Task
from accuracy.execute.ranks.rendezvous import Ranks
from accuracy.execute.start import ends_after
from accuracy.execute.worker import seconds_allowed, seconds_text, tell_changes, write


def lead(task: Task, ranks: Ranks, pending: Sequence[Planned]) -> Iterator[tuple[Case, str]]:
    """The first rank's part: every pending case and its status, its rows in the folder by then."""
    if task.by != "agent" and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":  # our agent notes it
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
            with _in_time(rank, case):
                if not (each.unsupported or reason):
                    rank.prepare(numbers[case.id])
                found = pipeline.failed(case, reason) if reason else measured(pipeline, each)
            changed = rank.changed()
            known.statuses[case.id] = write(task.folder, case, found)
            journal.note(task.folder, found.status, case.id)
            if changed:
                tell_changes(case, changed)
                os._exit(journal.LOST)
        yield case, known.statuses[case.id]
    rank.tell(0, END)


@contextmanager
def _in_time(rank: Rank, case: Case) -> Iterator[None]:
    """Limit what a rank does for a case: each draws and imports, the first computes the reference and simulates, and
    what they do together has a limit of its own in `Rank.take_part`. An agent of ours watches from outside. Elsewhere a
    timer of Python's ends a rank, which notes why, and one that needs no interpreter a rank whose function holds it."""
    task, seconds = rank.task, seconds_allowed(case, rank.task.case_seconds)
    if task.by == "agent":
        yield
        return
    if case.world == "processes" and task.by == "launcher":
        seconds += len(MODES) * task.seconds
    reason = f"took longer than {seconds_text(case, task.case_seconds)}"
    with ends_after(seconds + LATE_SECONDS), rank.limited(seconds, reason):
        yield


def follow(task: Task, ranks: Ranks) -> None:
    """Every other rank's part, until the first is through."""
    rank = Rank(task, ranks)
    while True:
        number, what = rank.tell()
        if what == END:
            return
        with _in_time(rank, task.cases[number]):
            rank.draw(number)
            if what == PREPARE:
                rank.release()
            else:
                rank.take_part(what)
