"""Strategies for random valid lifecycles: the declaration must accept each of them."""

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from interlock.core.lifecycle import Lifecycle

Triples = list[tuple[str, str, str]]

names = st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,11}", fullmatch=True)
notes = st.text(st.characters(codec="utf-8", exclude_characters="%:", exclude_categories=("C",)), max_size=20)


@st.composite
def sensible_triples(draw: st.DrawFn) -> Triples:
    """A queue, optionally a claimed and a started state, some stages, and any valid choice of exits for each."""
    claims, starts, rests = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    stages = [f"stage{n}" for n in range(draw(st.integers(0, 3)))]
    working = ["claimed" if claims else "queued", *(["started"] if starts else []), *stages]
    arrows: Triples = [("queued", "claim", "claimed")] if claims else []
    arrows += [(working[0], "start", "started")] if starts else []
    first = 1 if starts else 0
    arrows += [
        (source, "advance", target) for source, target in zip(working[first:], working[first + 1 :], strict=False)
    ]
    arrows += [
        (source, "advance", target) for source, target in draw(_some([(b, a) for a in stages for b in stages if a < b]))
    ]
    waiting = ["queued"]
    if rests:
        arrows += [("resting", "retry", "queued"), ("resting", "bury", "dead")]
        waiting.append("resting")
    failing = [draw(st.sampled_from(("resting", "failed"))) if rests else "failed" for _ in working]
    if rests and "resting" not in failing:
        failing[0] = "resting"
    arrows += [(state, "fail", target) for state, target in zip(working, failing, strict=True)]
    for event in ("retry", "lose"):
        arrows += [(state, event, "queued") for state in draw(_some(working)) if state != "queued"]
    arrows += [(state, "succeed", "done") for state in draw(_some(working)) or working[-1:]]
    for event, target in (("cancel", "cancelled"), ("reject", "rejected")):
        arrows += [(state, event, target) for state in draw(_some(sorted({*waiting, *working})))]
    return arrows + [(state, "expire", "expired") for state in draw(_some(waiting))]


@st.composite
def sensible_lifecycles(draw: st.DrawFn) -> Lifecycle:
    """The same with random names, in random order, with random text after the events."""
    triples = draw(sensible_triples())
    states = sorted({state for source, _, target in triples for state in (source, target)})
    renamed = dict(
        zip(states, draw(st.lists(names, min_size=len(states), max_size=len(states), unique=True)), strict=True)
    )
    labelled = [(renamed[source], f"{event} {draw(notes)}", renamed[target]) for source, event, target in triples]
    return Lifecycle(draw(names), transitions=draw(st.permutations(labelled)), initial=renamed["queued"])


def _some(values: Sequence[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.sampled_from(values), unique=True) if values else st.just([])
