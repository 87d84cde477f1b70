"""For the server that workers and ranks are forked from, which imports this first: what is imported stays, and to look
through it again and again would take a fifth of the imports' time. `start_method.collect` turns collection on again."""

import gc

gc.disable()
