"""Inputs that a live model was given say themselves which problem they are: shapes, mask, scale and dtype of a capture.

In: a composed configuration with inputs.captured.path=FOLDER, and the words that its user gave. Out: the same with what
the capture's header says in place of what nobody gave.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from accuracy.core.errors import ConfigError
from accuracy.core.recording import Recorded, choose, is_capture, recorded

SHIPPED = "layer_0"  # the default, a layer of the shipped file
EVERY = "every"


def settle(config: Mapping[str, Any], words: Iterable[str]) -> dict[str, Any]:
    """words: keys as a command line has them, `problem.seqlen` or `problem.seqlen=512`. Raises ConfigError."""
    node = config.get("inputs")
    captured = node.get("captured") if isinstance(node, Mapping) else None
    path = captured.get("path") if isinstance(captured, Mapping) else None
    if node is None or captured is None or not isinstance(path, str) or not is_capture(Path(path).expanduser()):
        return dict(config)
    folder = Path(path).expanduser()
    layer = captured.get("layer", SHIPPED)
    every = [chosen(folder, each) for each in ([layer] if isinstance(layer, str) else layer) if each != EVERY]
    every = every if layer != EVERY else recorded(folder)
    found = every[0]
    for one in every:
        if one.problem != found.problem:
            text = (
                f"{one.first.name} is another problem than {found.first.name}; choose calls of equal shapes and masks"
            )
            raise ConfigError(f"inputs.captured.layer={layer}: {text}")
    given = {word.partition("=")[0].lstrip("+") for word in words}
    settings = {key: value for key, value in found.problem.items() if f"problem.{key}" not in given}
    whole = {} if "problem" in given else {"problem": {**config["problem"], **settings}}
    dtype = {} if "dtype" in given else {"dtype": found.first.dtype}
    names = [one.first.name for one in every]
    inputs = {**node, "captured": {**captured, "layer": names if len(names) > 1 else names[0]}}
    return {**config, **whole, **dtype, "inputs": inputs}


def chosen(folder: Path, layer: str) -> Recorded:
    """The call that a layer's name names; of a folder in which nobody chose one, the first. Raises ConfigError."""
    found = recorded(folder)
    unnamed = layer == SHIPPED and not any(one.first.layer == SHIPPED for one in found)
    return found[0] if unnamed else choose(folder, layer)
