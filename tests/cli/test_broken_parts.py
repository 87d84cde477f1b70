"""Parts of a user's own that cannot be read: one line that names the file."""

import pytest

from tests import planting
from tests.command_line import TINY, CommandLine, assert_one_line


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("def draw(", "SyntaxError"),
        ("import nothing_of_that_name", "No module named 'nothing_of_that_name'"),
        ("raise ValueError('two\\nlines')", "ValueError: two lines"),
        ("x = 1", "lacks draw; see accuracy/inputs/distributions.py"),
    ],
)
def test_broken_code_of_a_users_part_is_told(accuracy: CommandLine, code: str, told: str) -> None:
    planting.part(accuracy.folder / "parts", "inputs", "mine", code)
    answer = accuracy("--config-dir=parts", *TINY, "inputs=mine")
    assert_one_line(answer, "mine.py", told)


def test_a_broken_yaml_of_a_users_part_is_told(accuracy: CommandLine) -> None:
    planting.part(accuracy.folder / "parts", "variant", "mine", "", "forward: [ring\n")
    assert_one_line(accuracy("--config-dir=parts", *TINY, "variant=mine"), "mine.yaml")


def test_a_few_lines_of_yaml_that_stand_for_billions_of_values_are_refused(accuracy: CommandLine) -> None:
    levels = [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 9)]
    planting.part(accuracy.folder / "parts", "variant", "mine", "", f"a0: &a0 [0]\n{''.join(levels)}")
    answer = accuracy("--config-dir=parts", *TINY, "variant=mine")
    assert_one_line(answer, "mine.yaml has more than 10000 values, its aliases (*NAME) written out; have less")
