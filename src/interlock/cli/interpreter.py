"""Settings of the interpreter that suit a worker."""

import gc
import sys

SWITCH_INTERVAL = 0.0005
"""Seconds after which Python interrupts a busy thread for another one. The default, 5 ms, delays database threads."""
GC_DEFAULTS = gc.get_threshold()
"""The thresholds of the garbage collector before the app is imported."""
GC_THRESHOLDS = (10_000, 20, 20)
"""With the defaults, the garbage collector scans the objects of each job several times in a busy worker."""


def tune_interpreter() -> None:
    """Collect garbage less often, never scan the app, which lives as long as the process, and switch threads sooner.

    Thresholds that the app has set itself are kept.
    """
    gc.collect()
    gc.freeze()
    if gc.get_threshold() == GC_DEFAULTS:
        gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_INTERVAL)
