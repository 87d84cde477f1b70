"""Parts of a user's own that cannot be read: one line that names the file."""

from tests import planting
from tests.command_line import TINY, CommandLine, assert_one_line

LEVELS = "".join(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 9))
BROKEN = {  # code or yaml: what is told
    "def draw(": "SyntaxError",
    "import nothing_of_that_name": "No module named 'nothing_of_that_name'",
    "raise ValueError('two\\nlines')": "ValueError: two lines",
    "x = 1": "lacks draw; see accuracy/inputs/distributions.py",
    "forward: [ring\n": "mine.yaml",
    f"a0: &a0 [0]\n{LEVELS}": "mine.yaml has more than 10000 values, its aliases (*NAME) written out; have less",
}


def test_broken_code_or_yaml_of_a_users_part_is_told(accuracy: CommandLine) -> None:
    for number, (text, told) in enumerate(BROKEN.items()):
        code, config = ("", text) if "yaml" in told else (text, "{}\n")
        planting.part(accuracy.folder / f"parts{number}", "inputs", "mine", code, config)
        answer = accuracy(f"--config-dir=parts{number}", *TINY, "inputs=mine")
        assert_one_line(answer, "mine.", told)
