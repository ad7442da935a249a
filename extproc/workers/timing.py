"""How often do processes tell each other something?"""

from __future__ import annotations

FLUSH_S = 0.002  # from the first thing there is to tell until it is told, with all that has come to it meanwhile
CENSUS_S = 1.0  # between two countings of what is open
COUNTS_S = 0.25  # between two reports of a worker's counters
