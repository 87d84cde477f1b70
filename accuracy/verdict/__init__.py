"""Bug or rounding? Reads tables only: rows in, one verdict per (variant, dtype, world size, tensor) out. No torch.

evidence.py gathers what the table holds on one tensor; rule/ has one small file per rule; verdict.py has their order;
pattern.py, proof.py and diagnosis.py turn what is wrong, and a cause that is proven, into a sentence.
"""
