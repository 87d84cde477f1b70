"""How accurate is distributed attention? Every variant against float64, per rank and per tensor.

The road, in the order of the data: `configuration` -> `case`, `grid` -> `inputs` -> `world` -> `variant` (kernel)
-> `reference` -> `metrics` -> `table` -> `report`. `pipeline` is the one file that walks all of it.
"""

__version__ = "0.1.0"
