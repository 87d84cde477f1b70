"""What is each of several places' share of a value that they make together (Shapley 1953)?"""

import math
from itertools import combinations


def shapley(value: dict[frozenset[str], float], places: tuple[str, ...]) -> dict[str, float]:
    """Each place's mean marginal fall of `value` over all orders in which the places are made finer."""
    count = len(places)
    shares = dict.fromkeys(places, 0.0)
    for place in places:
        others = [other for other in places if other != place]
        for size in range(count):
            weight = math.factorial(size) * math.factorial(count - size - 1) / math.factorial(count)
            for chosen in combinations(others, size):
                before = frozenset(chosen)
                shares[place] += weight * (value[before] - value[before | {place}])
    return shares
