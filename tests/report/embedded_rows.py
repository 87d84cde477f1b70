"""The rows inside a page, read back as the page's own script reads them; shares no code with what wrote them."""

import base64
import gzip
import json
import math
import re
from typing import Any

import numpy as np

MISSING, INFINITE, MISSING_WHOLE = -(2**15), 2**15 - 1, -(2**31)


def embedded(page: str) -> dict[str, list[Any]]:
    """Column name -> values, and the command of every row as the column `command`."""
    text = re.search(r'<script type="text/plain" id="rows-data"[^>]*>([^<]*)</script>', page)
    assert text is not None
    return decoded(text[1])


def decoded(encoded: str) -> dict[str, list[Any]]:
    line, _, body = gzip.decompress(base64.b64decode(encoded)).partition(b"\n")
    head = json.loads(line)
    count, place = head["count"], 0

    def whole(width: int) -> list[int]:
        nonlocal place
        parts = np.frombuffer(body, "u1", width * count, place).reshape(width, count).astype("int64")
        place += width * count
        found = sum(part << (8 * power) for power, part in enumerate(parts))
        return np.where(found >= 1 << (8 * width - 1), found - (1 << (8 * width)), found).tolist()

    cases = whole(4)
    columns: dict[str, list[Any]] = {"command": [head["commands"][case] for case in cases]}
    for column in head["columns"]:
        if "cases" in column:
            values = [column["cases"][case] for case in cases]
        elif "texts" in column:
            values = [None if code < 0 else column["texts"][code] for code in whole(4)]
        elif "power" not in column:
            values = [None if value == MISSING_WHOLE else value for value in whole(column["bytes"])]
        else:
            leading = whole(column["bytes"])
            values = [_number(*pair) for pair in zip(leading, whole(column["power"]), strict=True)]
        columns[column["name"]] = values
    assert place == len(body)
    return columns


def _number(leading: int, power: int) -> float | None:
    if power == MISSING:
        return None
    return leading * math.inf if power == INFINITE else float(f"{leading}e{power}")
