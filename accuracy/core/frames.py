"""Where in a user's file did something raise? An exception in one line, with the last of its lines that is his."""

import os
import traceback
from pathlib import Path

from accuracy.core.own_code import is_own


def located(error: BaseException) -> str:
    """`ValueError: what it says (my_package/ring.py:42, in attend)`; without a place where no file of his took part."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if not each.filename.startswith("<frozen") and is_own(Path(each.filename))]
    return f"{text} ({_shown(own[-1].filename)}:{own[-1].lineno}, in {own[-1].name})" if own else text


def _shown(name: str) -> str:
    """Below the current folder the path from there, else the name alone: the same from run to run."""
    path = Path(name)
    here = Path(os.path.abspath("."))
    return str(path.relative_to(here)) if path.is_relative_to(here) else path.name
