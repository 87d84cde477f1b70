"""Numbers of README.md and FINDINGS.md that no experiment's table has: see accuracy/report/evidence.py."""

from accuracy.report.evidence import Said, Tables

CAPTURE = "benchmark/nvidia-h200/capture.txt"
RATES = "selfcheck/rates.txt"
MKL = "https://github.com/pytorch/pytorch/issues/188792"
FACTORS = "tests/api/test_assert_accurate.py"
GATE, RULES = "accuracy/gate/rules.py", "accuracy/verdict/rule"


def quoted(tables: Tables) -> dict[str, list[Said]]:
    named = tables.text(RATES, r"detection: (\d+) of (\d+) planted")
    proven = tables.text(RATES, r"causes: (\d+) of \d+ faults proven \(.*?\), (\d+) wrong")
    accused, healthy = tables.text(RATES, r"false alarms: (\d+) of ([\d,]+) healthy")
    low = tables.text("selfcheck/low_precision.txt", r"healthy: (\d+) of ([\d,]+) combinations of (\d+) policies")
    return {
        "../README.md": [
            Said("and none of {:,.0f} of kernels in 8 or 4 bits under {:.0f} policies", low[1:], holds=low[0] == 0),
            Said("each 64 is of our schedule"),
            Said("`accuracy-selfcheck --stress` names {:.0f} of {:.0f} planted faults,", named),
            Said("proves the cause of {:.0f} of them by reconstruction with {:.0f} wrong causes,", proven),
            Said("accuses none of {:,.0f} healthy combinations", (healthy,), holds=accused == 0),
            Said(
                "a factor of 1 + 2^-10 on out, dq, dk or dv in bfloat16, 1 + 2^-13 in float16 and 1 + 2^-20",
                source=FACTORS,
            ),
            Said("agrees with 50-digit arithmetic to 1e-14", source="tests/reference/test_float64.py"),
            Said(
                "one captured step in 100 adds [{:.2f}%][capturing] to the mean step time",
                tables.text(CAPTURE, r"one step in 100: \+([\d.]+)%"),
            ),
            Said("(335 MB of one Llama-8B layer at 8,192 tokens)", source="tests/benchmark/capture.py"),
            Said("exit status 0 for a healthy run, 5 for a fault."),
            Said("writes a script of 20 lines"),
            Said("1.0 to 1.3 is the rounding of blocks, above 1.5 ask why, below 1 the variant", source=RULES),
            Said("Float64 rows at 1e-15 say"),
            Said("rose by more than 5% beyond chance,", source=GATE),
            Said("is above 1.5 times single device's error.", source=GATE),
        ],
        "FINDINGS.md": [
            Said("[CPU at 16,384]"),
            Said("drift 7 to 10 times as far as float16's", source="experiments/train_inference/README.md"),
            Said("jax-triton PR #177's factor of 4", source="https://github.com/jax-ml/jax-triton/pull/177"),
            Said("MKL (2024.2,", source=MKL),
            Said("an error of 3e-9 in float64 and 1.5e-4 in float32,", source=MKL),
            Said("in 14 processes of 60.", source="tests/runtime/test_arithmetic.py"),
            Said(
                "first ([test](../tests/runtime/test_arithmetic.py)): 0 of 60.",
                source="tests/runtime/test_arithmetic.py",
            ),
        ],
    }
