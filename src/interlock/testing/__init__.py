"""Tools to test jobs: a clock that the test sets, a worker that runs until nothing is due, and crashes at named points.

pytest loads the fixtures in `plugin`.
"""

from ..engine.failpoints import Failpoint
from .crash import Crashed
from .fresh_database import fresh
from .kit_clock import KitClock
from .kit_worker import KitWorker

__all__ = ["Crashed", "Failpoint", "KitClock", "KitWorker", "fresh"]
