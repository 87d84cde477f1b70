"""Where healthy variants must not be accused: shapes, features, kernels and inputs, each a change of the small problem.

A shape is measured as `diagnose` measures, on every distribution of inputs.
"""

INPUTS = (
    "attention_sink", "gaussian", "heavy_channels", "index_value", "one_gradient", "one_value", "outliers", "peaked",
    "rising_maxima", "sum_loss", "tied", "uniform", "zero_query",
)  # fmt: skip
SHAPES = {
    "one_token": "problem.seqlen=1 world_size=1",
    "two_tokens": "problem.seqlen=2 world_size=[1,2]",
    "three_ranks_one_token_each": "problem.seqlen=3 world_size=3",
    "five_ranks_one_token_each": "problem.seqlen=5 world_size=5",
    "eight_ranks_one_token_each": "problem.seqlen=8 world_size=[2,8]",
    "sixteen_ranks_one_token_each": "problem.seqlen=16 world_size=16",
    "odd_length": "problem.seqlen=45 world_size=[3,5] problem.head_dim=8",
    "mha": "problem.heads_kv=4 problem.seqlen=48 world_size=[2,3]",
    "mqa": "problem.heads_kv=1 problem.seqlen=48 world_size=[2,4] problem.head_dim=40",
    "head_dim_128": "problem.head_dim=128 problem.seqlen=32 world_size=[2,4]",
    "head_dim_128_long": (
        "problem.head_dim=128 problem.seqlen=384 world_size=[2,4] dtype=[bfloat16,float16] seed=[0,1] ~also"
    ),
    "batch": "problem.batch=2 problem.seqlen=40 world_size=[2,5]",
    "length_is_heads": "problem.seqlen=16 world_size=4",
    "full": "problem.mask=full problem.seqlen=48 world_size=[2,3]",
    "window": "problem.window=7 problem.seqlen=48 world_size=[2,3]",
    "window_of_one": "problem.window=0 problem.seqlen=16 world_size=[1,4]",
    "documents": "problem.documents=10+1+21+16 problem.seqlen=48 world_size=[2,3]",
    "softcap": "problem.softcap=2.5 problem.seqlen=48 world_size=[2,3]",
    "many_ranks": "problem.seqlen=128 world_size=[8,16] problem.heads=8",
    "kernels": "kernel=[chunked,torch_math] problem.seqlen=48 world_size=[1,3]",
    "captured": "inputs=captured problem.seqlen=1024 problem.heads_kv=1 problem.head_dim=32 world_size=[1,4] ~also",
}


def overrides(shape: str, inputs: tuple[str, ...] = INPUTS) -> list[str]:
    """What is measured of a shape."""
    words = SHAPES[shape].split()
    return words if "~also" in words else [f"inputs=[{','.join(inputs)}]", "~also.trace", "~also.reruns", *words]
