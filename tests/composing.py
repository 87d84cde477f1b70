"""The composed configuration as the console command sees it: plain dicts and lists."""

from functools import cache

from accuracy.config import compose

composed = cache(compose.compose)
"""To be read only: the same command gives the same object."""
