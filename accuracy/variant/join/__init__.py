"""How partial results and gradients of several blocks become one: formulas, dtypes of the sums."""
