"""The demo's program by name, `interlock.cli.demo.shop:app`: what its workers run. The environment says where."""

import os

from .program import Setting, build

app = build(Setting.of(os.environ))
