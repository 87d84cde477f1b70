"""Words that no command takes, drawn from every key of configs/config.yaml and every flag of the other commands."""

from hypothesis import strategies as st

HUGE = "9" * 400
NEVER = ["[[]]", "{a:1}", "[1,[2]]", "[", "]", "{", "'", "${nope}", "${oc.env:NO_SUCH_VARIABLE}", "[]]", "a,b", "\\"]
"""Values that are right nowhere: nested, unbalanced, of nothing."""
TEXTS = ["''", "'\x1b[31m'", "'two\nlines'", "../x", "/", "no_such_word", "'  '", "é", "'\x00'", "\u2028", "%n"]
NOT_WHOLE = [*NEVER, *TEXTS, "true", "nan", "inf", "-inf", "1e400", "0.5", "-1", "-" + HUGE, HUGE, "{}", "[nan]",
             "[-1]"]  # fmt: skip
NO_FLAG = [*NEVER, *TEXTS, "nan", "0.5", "-1", HUGE, "null", "[true]", "2", "{}", "yes please"]
NO_WORD = [*NEVER, *TEXTS, "nan", "inf", "-1", HUGE, "true", "{}", "[null]", "[nan]"]
NO_NUMBER = [*NEVER, *TEXTS, "true", "nan", "-inf", "-1", "-" + HUGE, "{}", "[true]", "'1'"]
NO_PATH = [*NEVER[:-1], "''", "'  '", "true", "nan", "inf", "[a,b]", "{}", "'\x1b[31m'", "'a\x00b'", "'two\nlines'",
           "0.5"]  # fmt: skip

KINDS = {
    "world_size seed problem.batch problem.heads problem.head_dim problem.seqlen problem.window problem.seqlen_q"
    " reruns.repeat": NOT_WHOLE,
    "threads workers": [*NOT_WHOLE, "[1,2]", "null", "0"],
    "reruns.poison reruns.unwaited reruns.future reruns.trace reruns.explain conditions report dry_run"
    " world.simulated.batched": NO_FLAG,
    "dtype unusable device reference.method problem.mask variant.ring.sharding"
    " precision.merge precision.wire": NO_WORD,
    "problem.softcap problem.softmax_scale problem.documents inputs.gaussian.std": NO_NUMBER,
    "case_seconds reference.min_seconds": [*NO_NUMBER, "[1,2]"],
    "name": [*NEVER, "''", "'\x1b[31m'", "../x", "/", "a/b", "null", "true", "nan", "[a]", "é/", "2"],
    "output_dir reference.folder": NO_PATH,
    "variant kernel inputs problem precision world experiment variant.ring.forward variant.ring.backward": [
        *NEVER, "'\x1b[31m'", "../x", "no_such_word", "[null]", "[nan]", "nan", "-1", HUGE, "true", "ring/../zigzag"
    ],
    "also reference reruns": [*NEVER, "3", "nan", "true", "no_such_word", "[1]", "''", "{no_such_key:{}}"],
    "kernel.auto.candidates kernel.auto variant.ring inputs.gaussian": [
        *NEVER, "3", "nan", "no_such_word", "../x", "[../x]", "no.such", "{no_such_key:1}"
    ],
}  # fmt: skip
REMOVED = "also seed dtype world_size inputs precision reruns name reference.method problem.seqlen kernel.auto inputs.gaussian"  # noqa: E501
EXPERIMENTS = ["", "experiment=diagnose", "experiment=demo", "experiment=regression"]


def _of_kind(keys: str, values: list[str]) -> st.SearchStrategy[str]:
    return st.tuples(st.sampled_from(keys.split()), st.sampled_from(values)).map("=".join)


_unknown = st.from_regex(r"\A[a-z]{3,8}_[a-z]{3,8}(\.[a-z]{1,5})?\Z").map(lambda key: f"{key}=1")
_removed = st.tuples(st.sampled_from(EXPERIMENTS), st.sampled_from(REMOVED.split())).map(
    lambda pair: " ".join([pair[0], f"~{pair[1]}"]).strip()
)
_garbage = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="=\x00"), min_size=1, max_size=12).map(
    lambda text: f"--no-such-{text}"
)
MEASURE = st.one_of(*(_of_kind(keys, values) for keys, values in KINDS.items()), _unknown, _removed, _garbage)
"""A bad word, or an experiment and a bad word, for `accuracy`."""

PLACES = ["", "nowhere", "/dev/null", "/dev/null/x", "../nowhere", "\x1b[31m", "a\nb", "x" * 300, "x\x00y", "nan"]
FLAGS = {
    "accuracy report": ["{place}", "{run} {place}", "{run} --nope", "", "{run} --earlier={text}"],
    "accuracy publish": ["{place}", "{run} --to /dev/null", "{run} {text}", "--to x", "", "{run} --to"],
    "accuracy check": [
        "{place}", "{run} {place}", "{run} --baseline {place}", "{run} --second {place}", "{run} --rows {number}",
        "{run} {run} --baseline {run}", "{run} --out /dev/null", "{run} --part=1", "{run} --nope", "", "{run} x {text}",
    ],
    "accuracy accept": [
        "{place}", "{run} --to /dev/null --reason x", "{run} --reason", "{run} --nope", "", "{run} {text}",
    ],
    "python -m experiments.probe": [
        "{word}", "kernel={word}", "dtype={word}", "question={word}", "device={word}", "kernel.eager.tf32={word}",
        "kernel.eager={word}", "--config-dir", "--json", "kernel=eager question=scale device=cpu --json /dev/null/x",
        "device=cpu,cuda", "kernel.nope.x=1",
    ],
    "accuracy reduce": [
        "{place}", "{word}", "{place} --layer {word}", "{place} --tensor {word}", "{place} --fn",
        "{place} --layout {word}",
    ],
    "accuracy judge": ["{place}", "{word}", "{place} --layers {word}", "{place} --device {word}", "{place} --to"],
    "accuracy tolerance": [
        "{word}", "", "q_shape={word} dtype=float32", *(
            f"q_shape=1,8,2,4 dtype=float32 {key}" for key in (
                "seeds={number}", "heads_kv={number}", "keys={number}", "inputs={word}", "kernel={word}", "mask={word}",
                "against={word}", "device={word}", "dtype={word}", "softmax_scale={word}", "q_shape=1,8,2,{number}",
            )
        ),
    ],
}  # fmt: skip
NUMBERS = ["-5", "0", "nan", "1.5", "", HUGE, "-" + HUGE, "²", "1e3x", "\x1b", "0x10", "ten"]
WORDS = ["", "no_such_word", "\x1b[31m", "=", "a=", "[", "../x", HUGE, "nan", "é", "a\nb", "[]", "x\x00y"]
BLANKS = {"place": PLACES, "number": NUMBERS, "word": WORDS, "text": ["\x1b[31m", "=", "a\nb", HUGE]}


def _filled(pattern: str) -> st.SearchStrategy[list[str]]:
    def word(part: str) -> st.SearchStrategy[str]:
        for name, values in BLANKS.items():
            if f"{{{name}}}" in part:
                return st.sampled_from(values).map(lambda value, name=name: part.replace(f"{{{name}}}", value))
        return st.just(part)

    return st.tuples(*map(word, pattern.split())).map(list)


OTHERS = st.one_of(
    *(_filled(pattern).map(lambda words, name=name: (name, words)) for name, all_ in FLAGS.items() for pattern in all_)
)
"""Another command's name and bad words for it; {run} stands for the folder of a finished run."""
