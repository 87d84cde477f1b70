"""One case: inputs, variant, reference, metrics, rows; reruns and condition numbers."""
