"""Settings of the interpreter that suit a worker."""

import gc
import sys

SWITCH_INTERVAL = 0.0005
"""Seconds after which Python interrupts a busy thread for another one. The default, 5 ms, delays database threads."""
GC_DEFAULTS = gc.get_threshold()
"""The thresholds of the garbage collector before the app is imported."""
GC_THRESHOLDS = (10_000, 20, 20)
"""The thresholds in a worker. With the defaults, a busy worker would scan the objects of each job several times."""


def tune_interpreter() -> None:
    """Collect garbage less often, exempt the app's objects from it, and switch threads sooner.

    If the app has set its own thresholds, they stay.
    """
    gc.collect()
    gc.freeze()
    if gc.get_threshold() == GC_DEFAULTS:
        gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_INTERVAL)
