"""Testing jobs: time that a test sets, a worker that runs until nothing is due, and crashes at named points. As fixtures for pytest: see `plugin`."""

from ..worker.points import Point
from .clock import KitClock
from .crash import Crashed
from .database import fresh
from .worker import KitWorker

__all__ = ["Crashed", "KitClock", "KitWorker", "Point", "fresh"]
