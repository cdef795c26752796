"""The delivery lifecycle is the requested one, checked against the original diagram."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

DRAWN = """
# Job lifecycle
```mermaid
stateDiagram-v2
  [*] --> QUEUED
  QUEUED --> CLAIMED: worker_claim(job_id)
  CLAIMED --> DOWNLOADING: start_download
  DOWNLOADING --> STREAMING: stream_to_local_api
  STREAMING --> DELIVERED: telegram_ack
  DOWNLOADING --> FAILED: non_retryable_error
  STREAMING --> FAILED: non_retryable_error
  DOWNLOADING --> QUEUED: retryable_error (attempt+1)
  STREAMING --> QUEUED: retryable_error (attempt+1)
  CLAIMED --> QUEUED: heartbeat_timeout (attempt+1)
  QUEUED --> CANCELLED: user_cancel (optional)
  QUEUED --> EXPIRED: ttl_expired (optional)
  FAILED --> [*]
  DELIVERED --> [*]
  CANCELLED --> [*]
  EXPIRED --> [*]
```
"""
ADDED = "CLAIMED --> FAILED"


@pytest.mark.parametrize(
    ("drawn", "allow", "code"),
    [
        (DRAWN, ADDED, 0),
        (DRAWN, "CLAIMED --> EXPIRED", 1),
        (DRAWN.replace("  QUEUED --> EXPIRED: ttl_expired (optional)\n", ""), ADDED, 1),
    ],
    ids=["as it was asked for", "without the arrow that was added", "with one arrow less"],
)
def test_lifecycle_is_the_requested_one(tmp_path: Path, drawn: str, allow: str, code: int) -> None:
    """It has one more transition, for a delivery that no worker may start or whose last try is lost at once."""
    (tmp_path / "asked.md").write_text(drawn, encoding="utf-8")
    given = {"BOT_TOKEN": "4242:" + "t" * 35, "ADMINS": "1", "FOLDER": "/Library", "YANDEX_TOKEN": "y0_" + "t" * 20}
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("COURIER_", "INTERLOCK_"))}
    environment = (
        clean
        | {f"COURIER_{name}": value for name, value in given.items()}
        | {"PYTHONPATH": str(Path(__file__).parents[3])}
    )
    command = [
        sys.executable,
        "-m",
        "interlock",
        "lifecycle",
        "delivery",
        "-A",
        "apps.courier.app:app",
        "--check",
        "asked.md",
        "--allow",
        allow,
    ]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, text=True, capture_output=True, check=False, timeout=60
    )
    assert done.returncode == code, done.stdout + done.stderr
    if not code:
        assert "matches delivery, except for 1 allowed" in done.stdout
