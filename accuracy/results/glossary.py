"""What does each column of the table mean, and in which unit? The one list, from which docs/columns.md is made.

`python -m accuracy.results.glossary docs/columns.md` writes it between the two marks there. TERMS are the words of a
first screen, for a reader who meets them there.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

BEGIN, END = "<!-- columns: python -m accuracy.results.glossary docs/columns.md -->", "<!-- end of columns -->"


@dataclass(frozen=True)
class Column:
    """unit: "" for names and texts; `tensor's`: as the tensor's values."""

    unit: str
    meaning: str


_TABLE = """
case_id | | identifier of the case: a digest of all its settings
experiment | | name of the experiment that measured the row
variant | | name of the variant or of the function
options | | settings of the variant, `key_chunk=64`
precision | | what differs from the variant's published rounding places
kernel | | local attention that the variant calls, which is also the single-device kernel
kernel_options | | settings of the kernel
inputs | | distribution of q, k, v and dout
inputs_options | | settings of the distribution
dtype | | dtype of q, k, v, dout, out and the gradients; float8_*: of the inputs alone, the others are bfloat16
world | | where the ranks are: simulated (one process) or processes
sums | | in which order ranks that share a GPU add: ring, as NCCL's; null: they share none
world_size | ranks | number of ranks
sharding | | which tokens a rank has: contiguous, zigzag, striped, or how many each has (40+20+36)
seed | | seed of the inputs
mask | | causal or full, with its window, documents and other settings that few problems have
softcap | | scores become softcap tanh(score / softcap); 0: no cap
batch | sequences | batch size B
seqlen | tokens | keys and values of all ranks, S
seqlen_q | tokens | queries of all ranks
heads | heads | query heads H
heads_kv | heads | key and value heads
head_dim | elements | head dimension D
softmax_scale | | factor of the scores
against | | the other path that the case was compared with, as `path_b` names it; null: none
device | | model of the GPU, or cpu
code | | digest of the code that measured the row; a function's own after a +
tensor | | out, lse, dq, dk, dv or delta (the row sums of dout times out); null: the case has no numbers
rank | | rank; -1: all ranks together
status | | ok, unsupported (the case's parts cannot do it) or failed
reason | | why the case or the tensor has no numbers, or which of them are not finite

error_max | tensor's | largest absolute error; error = variant - float64 reference
error_mean | tensor's | mean absolute error
error_rms | tensor's | root mean square of the error
error_rel | ratio | Frobenius norm of the error over that of the reference
error_bias | tensor's | signed mean of the error
error_bias_t | standard errors | signed mean of the error over its standard error, elements as independent
error_outward | tensor's | mean of the error times the sign of the reference; above 0: away from zero
error_gain | 1 | <x, reference> / <reference, reference> - 1: 0.01 where the tensor is 1.01 times the reference
error_gain_se | 1 | standard error of error_gain, the heads of tokens taken as independent
diff_max | tensor's | largest absolute diff; diff = variant - single device
diff_mean | tensor's | mean absolute diff
diff_rms | tensor's | root mean square of the diff
diff_rel | ratio | Frobenius norm of the diff over that of the reference
single_device_rel | ratio | error_rel of the same kernel run once on the whole sequence
single_device_max | tensor's | error_max of the single-device kernel
single_device_bias | tensor's | error_bias of the single-device kernel
single_device_outward | tensor's | error_outward of the single-device kernel
floor_mean | tensor's | mean absolute error of the reference rounded to the tensor's dtype
floor_rel | ratio | error_rel of the reference rounded to the tensor's dtype: the rounding floor
x_floor | ratio | error_rel over floor_rel
x_single_device | ratio | error_rel over single_device_rel
ulp_max | ulp | largest error in the dtype's spacings at the reference, or at its root mean square if larger
reference_rms | tensor's | root mean square of the reference
condition_softmax | ratio | condition number of the softmax, root mean square over rows; null: not asked for
condition_sum | ratio | condition number of the tensor's sums, all errors of one sign; null: not asked for
condition_rounding | ratio | as condition_sum, errors independent; null: not asked for
repeats_size | ratio | largest change in a run again, over its element or the rms, the larger; null: not asked for

loss_max | tensor's | largest absolute loss; loss = variant - reference of the inputs before 8 bits; null: no 8 bits
loss_mean | tensor's | mean absolute loss
loss_rms | tensor's | root mean square of the loss
loss_rel | ratio | Frobenius norm of the loss over that of its reference

drift_ulp | ulp | largest difference of the two paths, in spacings of the dtype's numbers at the reference
drift_max | tensor's | largest absolute difference of the two paths
drift_rel | ratio | Frobenius norm of the difference over that of the reference
drift_row | ratio | largest difference of a row (a head of a token), norm over the norm of its reference
drift_row_token | index | token of that row, counted over all ranks
drift_error_rel | ratio | error_rel of the other path on the same tokens
drift_expected | ratio | drift_rel that independent errors of the two paths' sizes give
drift_low | ratio | lower end of its 95% interval, the errors' signs independent from row to row
drift_high | ratio | upper end of it
drift_limit | ratio | drift_rel below which two healthy roundings stay, each at most 1.5 times the eager kernel's error
drift_gain | 1 | <difference, reference> / <reference, reference>
drift_gain_se | 1 | standard error of drift_gain, rows taken as independent
drift_nearer | standard errors | squared error less the other path's, paired by rows; above 3 the other is nearer

drift_differ | elements | elements whose bits differ between the two paths; null: no other path
significand_bits | bits | fewest significant bits in which all values are exact; bfloat16 has 8, float32 24
repeats_differ | elements | elements that differed when the case was run again; null: not asked for
repeats_runs | runs | runs again in which an element differed; null: not asked for
poisoned | elements | elements not finite where unwritten memory was NaN; null: not asked for
unwaited | elements | elements not finite where receive buffers were NaN until they were waited for; null: not asked for
future_differs | elements | elements that changed with keys behind their token; null: not asked for
beyond | elements | elements that no rounding in the dtype carries so far from the reference; null: not asked for
nonfinite | elements | elements that are not finite, where the reference is
worst_batch | index | batch of the largest error
worst_token | index | token of the largest error, counted over all ranks
worst_head | index | head of the largest error
worst_dim | index | head dimension of the largest error; -1: the tensor has none

seconds | s | forward and backward of all ranks; null where several cases shared a GPU
peak_bytes | bytes | memory at its peak, beyond what was held before; simulated ranks: of all, with copied blocks
"""
_PARTS = [[map(str.strip, line.split("|")) for line in part.strip().splitlines()] for part in _TABLE.split("\n\n")]
IDENTITY, METRICS, LOSSES, METRICS_OF_PAIRS, COUNTS, COSTS = (
    {name: Column(unit, meaning) for name, unit, meaning in part} for part in _PARTS
)
COLUMNS = IDENTITY | METRICS | LOSSES | METRICS_OF_PAIRS | COUNTS | COSTS


TERMS = {  # by the pattern that uses it
    r"[Ee]rror": "error: distance from float64 attention on the same rounded inputs, relative to it",
    r"[Ss]ingle[- ]device": "single device: the same kernel run once on the whole sequence",
    r"rounding floor|least possible": "rounding floor, the least possible error: the exact result, merely rounded",
    r"\blse\b": "lse: log of the softmax's sum, kept in float32",
    r"\bdelta\b": "delta: row sums of dout times out, which the backward uses, kept in float32",
    r"\bW\b": "W: number of ranks",
}


def defined(*texts: str) -> str:
    """The definitions of the words that the texts use; empty where they use none."""
    words = " ".join(texts)
    return " · ".join(meaning for pattern, meaning in TERMS.items() if re.search(pattern, words))


def markdown() -> str:
    """The glossary as a table, between its marks."""
    rows = [f"| `{name}` | {each.unit} | {each.meaning} |" for name, each in COLUMNS.items()]
    return "\n".join([BEGIN, "", "| column | unit | meaning |", "|---|---|---|", *rows, "", END])


if __name__ == "__main__":
    page = Path(sys.argv[1])
    before, _, rest = page.read_text().partition(BEGIN)
    page.write_text(before + markdown() + rest.partition(END)[2])
