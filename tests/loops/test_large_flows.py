"""A fan-out of 10,000 parts and the jobs that wait for it."""

from collections import Counter

from tests.loops.pipeline import Pipeline

PARTS = 10_000


def test_one_percent_of_10000_parts_fails_and_each_policy_decides_once(pipeline: Pipeline) -> None:
    """One job is cancelled, one runs with the results that there are, and one is held until its release."""
    pipeline.broken = set(range(0, PARTS, 100))
    rest = sum(set(range(PARTS)) - pipeline.broken)
    with pipeline.app.flow("import") as flow:
        parts = flow.batch("parts", [pipeline.part.request(n) for n in range(PARTS)])
        strict = flow.add(pipeline.total.request(), after=[parts])
        after_strict = flow.add(pipeline.report.request(), after=[strict])
        lenient = flow.add(pipeline.total.request(), after=[parts], on_failed="run")
        careful = flow.add(pipeline.total.request(), after=[parts], on_failed="hold")
    pipeline.app.run_until_idle(timeout=600)
    progress = parts.progress()
    assert (progress.succeeded, progress.failed) == (PARTS - 100, 100)
    assert (strict.job().state, after_strict.job().state) == ("CANCELLED", "CANCELLED")
    assert (lenient.job().state, lenient.job().result) == ("SUCCEEDED", rest)
    assert careful.job().held_at is not None
    pipeline.app.release(careful.id, by="ann", reason="one percent may be missing")
    pipeline.app.run_until_idle()
    assert (careful.job().state, careful.job().result) == ("SUCCEEDED", rest)
    # Each job ended once: its history has one transition into its final state.
    for each in (strict, after_strict, lenient, careful):
        ends = Counter(entry.to_state for entry in pipeline.app.history(each.id) if entry.to_state != entry.from_state)
        assert ends[each.job().state] == 1
        assert each.job().attempt == 1
    assert pipeline.app.verify().violations == []
