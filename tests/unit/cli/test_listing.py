import os
import sys
from pathlib import Path

import pytest

from accuracy import __version__
from accuracy.cli import listing, run
from accuracy.core.errors import ConfigError
from accuracy.core.paths import CONFIGS, PACKAGE
from tests.command_line import SHORT, CommandLine

FILES = sorted(CONFIGS.glob("*/*.yaml"))


def test_every_choice_has_a_description_and_is_listed_with_it_and_the_main_config_is_shown() -> None:
    text = listing.text([])
    assert "world_size: [1, 2, 4]" in text
    assert "hydra:" not in text
    for path in FILES:
        description = listing.description(path)
        assert description, path
        assert section(text, path.parent.name)[path.stem] == description


def section(text: str, group: str) -> dict[str, str]:
    """Choices and descriptions under the heading `group:`."""
    _, _, rest = text.partition(f"\n{group}:\n")
    lines = rest.partition("\n\n")[0].splitlines()
    return {name: description.strip() for name, _, description in (line.strip().partition(" ") for line in lines)}


def test_a_users_folder_is_found_in_both_spellings_and_listed_beside_ours(tmp_path: Path) -> None:
    (tmp_path / "variant").mkdir()
    (tmp_path / "variant" / "mine.yaml").write_text("# @package variant.mine\n# A ring of my own\nforward: mine\n")
    (tmp_path / "flavour").mkdir()
    (tmp_path / "flavour" / "sweet.yaml").write_text("# A group of my own\n")
    for flag in ("--config-dir", "-cd"):
        assert listing.folders_of(["--help", flag, str(tmp_path)]) == [tmp_path]
        assert listing.folders_of([f"{flag}={tmp_path}", "variant=mine"]) == [tmp_path]
        assert listing.folders_of(["variant=mine", flag]) == []
    text = listing.text([tmp_path])
    assert section(text, "variant").items() >= {"mine": "A ring of my own"}.items()
    assert "ring" in section(text, "variant")
    assert section(text, "flavour") == {"sweet": "A group of my own"}


def test_the_help_lists_every_subcommand_and_each_has_a_help_of_its_own_and_the_version_is_the_package_s(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["accuracy", "--version"])
    run.main()
    assert capsys.readouterr().out == f"accuracy {__version__}\n"  # not Hydra's
    files = {path.stem for path in (PACKAGE / "cli").glob("*.py") if "def main(arguments" in path.read_text()}
    assert set(listing.COMMANDS) == files
    for name in listing.COMMANDS:
        assert f"  accuracy {name} " in listing.commands()
        with pytest.raises(SystemExit) as ended:
            run.subcommand([name, "--help"])
        assert ended.value.code == 0
        assert f"usage: accuracy {name}" in capsys.readouterr().out


def test_a_first_word_without_an_equals_sign_is_a_subcommand_and_an_unknown_one_is_refused_with_the_nearest() -> None:
    assert run.is_subcommand(["chek", "run"])
    assert not any(map(run.is_subcommand, (["variant=ring"], ["-m", "x=1"], ["+key=1"], ["~also.trace"], [])))
    with pytest.raises(ConfigError, match="did you mean check"):
        run.subcommand(["chek", "run"])


def test_an_experiment_s_help_has_its_description_and_its_cases() -> None:
    text = listing.of_experiment("regression", [])
    assert text.startswith(listing.description(CONFIGS / "experiment" / "regression.yaml"))
    assert "\n640 cases; " in text
    assert "accuracy --help experiment=NAME" in listing.USAGE
    with pytest.raises(ConfigError, match="did you mean regression"):
        listing.of_experiment("regresion", [])
    with pytest.raises(ConfigError, match="write accuracy experiment=diagnose"):
        run.subcommand(["diagnose"])


@pytest.mark.parametrize("words", [("--help",), SHORT])
def test_a_reader_that_stops_early_changes_no_status(
    words: tuple[str, ...], accuracy: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`accuracy WORDS | head`: the pipe is closed before the command has written its last line."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        answer = accuracy(*words)
    assert answer.status == 0, answer.err
    assert "Broken pipe" not in answer.err
