"""One example of every event."""

from interlock.telemetry import events

ID = "0195f3c2-1111-7000-8000-00000000abcd"
WORKER = "host-17-0195f3c2"
ONE_OF_EACH: tuple[events.Event, ...] = (
    events.WorkerStateChanged(WORKER, "Startup", "Connecting", "boot"),
    events.SlotStateChanged(WORKER, 3, "Claiming", "Processing", "claimed", ID),
    events.Claimed(WORKER, 4, 0.002),
    events.DatabaseCall("settle", 7, 0.004),
    events.Renewed(WORKER, 5, 1, 2, 0.001),
    events.Recovered(WORKER, "paint", ID, "adopted"),
    events.WorkerError(WORKER, f"job {ID}", "ConnectionError: refused"),
    events.DatabaseReachable(WORKER),
    events.Notice(WORKER, "The last slot is busy.", {"slots": 4}),
    events.ExternalCheckSucceeded("paint", 100, 0.3),
    events.ExternalCheckFailed("paint", 2, 60.0, "ConnectionError: refused"),
    events.Transition(ID, "paint", "standard", "claim", "PENDING", "RUNNING", 1, "worker"),
    events.AttemptEnded(ID, "paint", "default", 1, "succeed", 0.5, 2.0),
    events.ExecutionLost(ID, "paint", 1, "another holds it"),
    events.MoveRefused(ID, "paint", 1, "SUCCEEDED", "PENDING"),
    events.Measured(ID, "paint", "pixels", 640.0),
    events.FinishFailed(ID, "paint", 2, "OSError: full"),
    events.HookFailed(ID, "paint", "FAILED", "ValueError: no"),
)
