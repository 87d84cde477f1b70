"""The command under torchrun, srun or submitit: the first process runs it, the others keep a rank for it each."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from accuracy.execute.ranks.launch import launch

if TYPE_CHECKING:
    from accuracy.execute.ranks.launched import Crew


def with_crew(work: Callable[["Crew | None"], int]) -> int:
    """Exit status of `work` on the crew that this process heads (None: it was started alone); 0 of a keeper's life.

    Raises ConfigError where the processes of the launch do not find each other.
    """
    started = launch(os.environ)
    if started is None:
        return work(None)
    from accuracy.execute.ranks import (
        launched,  # torch is imported only now
        launched_rank,
    )

    if started.rank > 0:
        launched_rank.keep(started)
        return 0
    with launched.gather(started) as gathered:
        return work(gathered)
