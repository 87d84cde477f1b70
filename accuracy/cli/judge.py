"""`accuracy judge FOLDER`: is a captured training run right? Its attention against float64, layer by layer."""

import argparse
from collections.abc import Sequence

from accuracy.cli import FAULTY, NOTHING_MEASURED, Parser, path_of, show, status_of
from accuracy.core.errors import printable

EPILOG = """examples:
  accuracy judge RUN/attention                     the folder of `with accuracy.capture(model, FOLDER): train_step()`
  accuracy judge RUN/attention --layers '*.3' --to page.html

exit status: 0 the run merely rounds, 2 usage or a capture that cannot be read, 3 nothing could be judged, 5 a fault
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the sentence, write report.html and judge.csv beside the capture; see the epilog for the status."""
    parser = Parser("accuracy judge", __doc__, EPILOG)
    add = parser.add_argument
    add("folder", type=path_of, metavar="FOLDER", help="a capture; of several ranks, the files of all of them")
    add("--layers", default="*", metavar="PATTERN", help="layers to judge, as '*.3'; all if not given")
    add("--device", default="auto", choices=("auto", "cpu", "cuda"), help="where the reference is computed")
    add("--to", type=path_of, metavar="FILE", help="the page; FOLDER/report.html if not given")
    given = parser.parse_args(arguments)
    return status_of("accuracy judge", lambda: _judge(given))


def _judge(given: argparse.Namespace) -> int:
    from accuracy.live import html, judge  # torch is imported only now
    from accuracy.runtime import arithmetic
    from accuracy.verdict.label import NOT_MEASURED

    arithmetic.make_exact()
    found = judge.judge(given.folder, layers=given.layers, device=given.device)
    page = html.write_report(found, given.to or given.folder / "report.html")
    found.rows.map(_csv_cell).to_csv(page.with_name("judge.csv"), index=False)
    show(*map(printable, [*found.sentence.splitlines(), str(page)]))
    if found.label == NOT_MEASURED:
        return NOTHING_MEASURED
    return 0 if found.healthy else FAULTY


def _csv_cell(value: object) -> object:
    """A text that no spreadsheet takes for a formula (OWASP's rule for CSV), without control characters."""
    if not isinstance(value, str):
        return value
    return f"{chr(39) * value.startswith(('=', '+', '-', '@'))}{printable(value)}"
