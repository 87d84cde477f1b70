"""Are out, lse, dq, dk and dv the same bit for bit in 30 runs?"""

from experiments.probe.base import DIM, TENSORS, Answer, Subject, same_bits

RUNS = 30
LENGTH = {"cpu": 96, "cuda": 2048}  # long enough on a GPU that many blocks add to the same gradients


def ask(subject: Subject) -> Answer:
    """All the same, or how many different results each tensor had."""
    length = LENGTH[subject.device]
    q, dout = (subject.random(1, length, 8, DIM, seed=seed) for seed in (0, 3))
    k, v = (subject.random(1, length, 2, DIM, seed=seed) for seed in (1, 2))
    different: dict[str, list[object]] = {name: [] for name in TENSORS}
    for _ in range(RUNS):
        for name, x in subject.both(q, k, v, dout, causal=True).items():
            if not any(same_bits(x, other) for other in different[name]):  # type: ignore[arg-type]
                different[name].append(x)
    counts = {name: len(found) for name, found in different.items()}
    varied = [f"{name} has {count} results in {RUNS}" for name, count in counts.items() if count > 1]
    return Answer(", ".join(varied) or f"all the same in {RUNS} runs", counts)
