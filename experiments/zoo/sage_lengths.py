"""`python -m experiments.zoo.sage_lengths`: how far is sageattention from float64, by the length of the sequence?"""

import torch


def main() -> None:
    from sageattention import sageattn

    for length in (128, 200, 264, 512, 528, 1000, 1024):
        for causal in (False, True):
            found = []
            for seed in range(4):
                generator = torch.Generator("cuda").manual_seed(seed)
                shape, how = (1, 8, length, 64), {"device": "cuda", "dtype": torch.float16, "generator": generator}
                q, k, v = (torch.randn(shape, **how) for _ in range(3))
                out = sageattn(q, k, v, is_causal=causal)
                exact = torch.nn.functional.scaled_dot_product_attention(
                    q.double(), k.double(), v.double(), is_causal=causal
                )
                error = float((out.double() - exact).nan_to_num().norm() / exact.norm())
                found.append((int((~out.isfinite()).sum()), round(error, 4)))
            print(f"{length} tokens, causal={causal}: (not finite, relative error) by seed {found}", flush=True)


if __name__ == "__main__":
    main()
