"""The reference: float64, on the same rounded inputs, by code that shares nothing with variants or kernels."""
