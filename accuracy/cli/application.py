"""What `accuracy` does beyond help: a Hydra application, whose jobs `accuracy.cli.job` measures."""

import os
import re
import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra._internal.utils import get_args_parser  # private: there is no public way to say in one line what is wrong
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

from accuracy.cli import USAGE_ERROR, internal, job, listing, unusable
from accuracy.config.resolve import keys_of, replayed, resolved
from accuracy.core.errors import ConfigError, NoRendezvous, printable, unknown
from accuracy.core.paths import CONFIGS
from accuracy.execute import start as processes
from accuracy.execute.start import Launch

GROUPS = "variant", "kernel", "inputs", "problem", "precision", "world", "experiment"
MISTAKES = ConfigError, HydraException, OmegaConfBaseException, YAMLError


def start(arguments: list[str]) -> int:
    """The exit status of these words, see `accuracy.cli.run`. One of several launched processes ends here, whatever
    threads it has left."""
    status = _status(lambda: _run_application(arguments, processes.launch(os.environ)))
    if _launched() is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


def _launched() -> Launch | None:
    """How this process was launched; None: it was started alone, or the environment is wrong."""
    with suppress(ConfigError):
        return processes.launch(os.environ)
    return None


def _status(work: Callable[[], int]) -> int:
    """The exit status of `work`; as `status_of`, and of several launched processes one speaks."""
    try:
        return work()
    except (*MISTAKES, OSError) as error:
        if isinstance(error, OSError) and (error.filename is None or error.strerror is None):
            return internal("accuracy", error)
        return _complain(error)
    except Exception as error:
        return internal("accuracy", error)


def _run_application(arguments: list[str], launch: Launch | None) -> int:
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra hands its errors over instead of printing them
    if launch is None:  # a launcher sends it before it starts all processes anew: that must not take long
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what is measured stays, and is reported
    elif launch.rank > 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # the first process says what there is to say
    statuses, started = list[int](), list[bool]()

    def refuse(message: str) -> NoReturn:
        flag = re.search(r"--([\w-]+)", message)
        near = listing.nearest_key(flag[1].replace("-", "_")) if flag else ""
        key = f"{near}=true" if near == "dry_run" else f"{near}=VALUE" if near else "KEY=VALUE"
        raise ConfigError(f"{message}; write {key}, or see accuracy --hydra-help for flags")

    def task(config: DictConfig) -> None:
        started.append(True)
        statuses.append(_status(lambda: _measured(config, launch)))  # a mistake in a job of a sweep leaves the others

    try:
        parser = get_args_parser()
        parser.error = refuse  # type: ignore[method-assign]  # Hydra's own answer is its usage, many lines long
        words = parser.parse_intermixed_args(arguments).overrides
        arguments = [*(each for each in arguments if each not in words), *words]  # Hydra takes flags first
        _check_choices(arguments)
        sys.argv[1:] = arguments
        hydra.main(config_path=str(CONFIGS), config_name="config", version_base="1.3")(task)()
    except (*MISTAKES, ValueError, OSError) as error:  # ValueError: Hydra's for `kernel=null`; OSError: of its folders;
        if started and not isinstance(error, MISTAKES):  # `start` tells whether it is a file or our bug
            raise
        statuses.append(_complain(error))
    return max(statuses, default=0)


def _measured(config: DictConfig, launch: Launch | None) -> int:
    sources = (Path(each.path) for each in HydraConfig.get().runtime.config_sources if each.schema == "file")
    folders = [path for path in sources if path.resolve() != CONFIGS.resolve()]  # where users keep parts
    words = HydraConfig.get().overrides.task
    listing.check_first_lines(folders)
    quoted = (f"'{word}'" if "[" in word else word for word in words)
    command = [*(f"--config-dir={folder}" for folder in folders), *quoted]
    plain: Any = OmegaConf.to_container(config, resolve=True)
    given = keys_of(words)
    return job.measure(resolved(replayed(plain, given), given), folders, command, launch)


def _check_choices(words: Iterable[str]) -> None:
    """A list of choices holds names: of anything else Hydra makes a traceback. What cannot be read, it says itself. Of
    two choices of a group whose choices set the same keys Hydra would keep one and say nothing."""
    for word in words:
        group, _, value = word.partition("=")
        name = group.lstrip("+")
        if not group.strip("+~") and value:
            raise ConfigError(f"{word!r} has no key; write KEY=VALUE")
        if name not in (*GROUPS, "observers"):
            continue
        if group.startswith("+") and name in GROUPS:
            raise ConfigError(f"{word} is a second choice of {name}; write {word.lstrip('+')}")
        if "/" in value:
            raise ConfigError(f"{word} names no choice of {name}: no name has a / (accuracy --help lists all)")
        if name in ("problem", "precision", "experiment") and value.startswith("[") and "," in value:
            raise ConfigError(f"{word} is no axis of the grid; choose one, give lists to its keys ({name}.KEY=[..])")
        with suppress(HydraException):
            names = OverridesParser.create().parse_override(word).value()
            if isinstance(names, list) and not all(isinstance(each, str) for each in names):
                raise ConfigError(f"{word} is no list of names (accuracy --help lists all of {name})")


def _complain(error: BaseException) -> int:
    started = _launched()
    if started is None or started.rank == 0 or isinstance(error, NoRendezvous):
        print(f"accuracy: {printable(one_line(error))}", file=sys.stderr)
    return USAGE_ERROR


def one_line(error: BaseException) -> str:
    """An error's message without line breaks; Hydra's say in many lines what fits in one."""
    while not str(error).strip() and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, OSError) and error.strerror:
        return unusable(error)
    if isinstance(error, ConfigError):
        return str(error)
    if isinstance(error, OverrideParseException):
        return f"{error.override!r} cannot be read ({_joined(str(error))}); write KEY=VALUE or KEY=[VALUE,VALUE]"
    if choice := re.match(r"(?:In '.*?': )?Could not (?:find|load) '(\w+)/([^']*)'", str(error)):
        group, name = choice.groups()
        return str(unknown(group, name, listing.choices(group, (CONFIGS, *listing.folders_of(sys.argv[1:])))))
    if key := re.match(r"Could not override '([^']*)'", str(error)):
        near = listing.nearest_key(key[1])
        hint = f"; did you mean {near}?" if near else ""
        return f"key {key[1]!r} is unknown{hint} (accuracy --help lists every choice and key)"
    message = str(error).partition("Config search path")[0].replace("In 'config': ", "")
    return f"{_joined(message)} (accuracy --help lists every choice and key)"


def _joined(message: str) -> str:
    lines = filter(None, map(str.strip, message.partition("See https://")[0].splitlines()))
    return ", ".join(lines).replace(":,", ":").replace(", ;", ";")
