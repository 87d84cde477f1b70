"""The rows inside a page, read back as the page's own script reads them; shares no code with what wrote them."""

import base64
import gzip
import json
import re
from typing import Any


def embedded(page: str) -> dict[str, list[Any]]:
    """Column name -> values, and the command of every row as the column `command`."""
    text = re.search(r'<script type="text/plain" id="rows-data"[^>]*>([^<]*)</script>', page)
    assert text is not None
    return decoded(text[1])


def decoded(encoded: str) -> dict[str, list[Any]]:
    head = json.loads(gzip.decompress(base64.b64decode(encoded)))
    columns: dict[str, list[Any]] = {"command": [head["commands"][case] for case in head["cases"]]}
    infinite = {"inf": float("inf"), "-inf": float("-inf")}
    for column in head["columns"]:
        if "texts" in column:
            values = [None if place < 0 else column["texts"][place] for place in column["places"]]
        else:
            values = [infinite.get(value, value) if isinstance(value, str) else value for value in column["numbers"]]
        columns[column["name"]] = [values[case] for case in head["cases"]] if column["by_case"] else values
    return columns
