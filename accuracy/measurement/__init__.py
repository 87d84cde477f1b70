"""One case observed (`observe.py`) and its rows: inputs, variant, reference, metrics; reruns and condition numbers."""
