"""What could have made this error? Each hypothesis predicts a wrong tensor from the reference's own mathematics.

In: a case's inputs and what its ranks returned. Out: rows of `hypotheses/`, how much of each wrong tensor every
hypothesis leaves unexplained. `attention.py` is a dense attention in float64 whose stages can be replaced; a family of
hypotheses is a function of what is asked, in a file with its like; `search.py` compares them all.
"""
