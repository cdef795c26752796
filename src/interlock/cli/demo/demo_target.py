"""The demo app, `interlock.cli.demo.demo_target:app`, for its worker processes."""

import os

from .demo_app import Setting, build

app = build(Setting.of(os.environ))
