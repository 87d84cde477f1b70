"""What kernels share about a block: how it is asked for, which keys its rows see, and its scores out of products."""
