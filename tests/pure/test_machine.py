"""Machine: it is read from a diagram and written as one."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.core.lifecycle import Lifecycle
from interlock.core.machine import Arrow, Machine
from interlock.errors import LifecycleError

from .strategies import names, notes, sensible_lifecycles

WORKER_LOOP = """\
stateDiagram-v2
    [*] --> Connecting

    state "Worker Loop" as Loop {
        Connecting --> Recovery: Connected
        Recovery --> Polling: Check Done

        Polling --> Claiming: Task Found
        Polling --> Backoff: No Tasks

        Backoff --> Idle: Calc Interval
        Idle --> Connecting: Sleep Done

        Claiming --> Processing: Lease Acquired
        Claiming --> Polling: Claim Failed

        Processing --> ReportingSuccess: Success
        Processing --> ReportingFailure: Error

        ReportingSuccess --> Polling: Loop
        ReportingFailure --> Polling: Loop
    }

    Connecting --> ErrorWait: DB Error
    Loop --> ErrorWait: Unhandled Exception
    ErrorWait --> Connecting: Retry (5s)
"""


def drawn(*lines: str) -> Machine:
    return Machine.parse("m", "\n".join(("stateDiagram-v2", *lines)))


@settings(max_examples=50, deadline=None)
@given(sensible_lifecycles())
def test_lifecycle_is_read_back_from_its_diagram(lifecycle: Lifecycle) -> None:
    again = Lifecycle.parse(lifecycle.name, lifecycle.mermaid())
    assert again == lifecycle
    assert hash(again) == hash(lifecycle)
    assert again.digest == lifecycle.digest
    assert [arrow.note for arrow in again.arrows] == [arrow.note for arrow in lifecycle.arrows]


@given(
    names,
    st.lists(
        st.tuples(names, notes, names),
        min_size=1,
        unique_by=lambda triple: (triple[0], " ".join(triple[1].split()), triple[2]),
    ),
)
def test_machine_is_read_back_from_its_diagram(name: str, transitions: list[tuple[str, str, str]]) -> None:
    machine = Machine(name, transitions=transitions)
    assert Machine.parse(name, machine.mermaid()) == machine


def test_workers_loop_has_sixteen_transitions() -> None:
    """The start and fifteen transitions, one of which leaves every state of the loop."""
    loop = Machine.parse("worker", WORKER_LOOP)
    assert 1 + len({arrow.line for arrow in loop.arrows}) == 16
    assert loop.initial == "Connecting"
    assert loop.finals == frozenset()
    assert {arrow.source for arrow in loop.arrows if arrow.event == "Unhandled Exception"} == set(loop.states) - {
        "ErrorWait"
    }
    assert Arrow("ErrorWait", "Retry (5s)", "Connecting") in loop.arrows


def test_transition_into_a_composite_leads_to_its_initial_state() -> None:
    machine = drawn(
        "[*] --> A",
        "A --> Outer: in",
        "state Outer {",
        "[*] --> Inner",
        "state Inner {",
        "[*] --> B",
        "B --> C: on",
        "}",
        "}",
        "Outer --> D: out",
    )
    assert machine.pairs() == {("A", "B"), ("B", "C"), ("B", "D"), ("C", "D")}


def test_transition_of_a_composite_applies_to_its_other_states() -> None:
    machine = drawn("[*] --> A", "state Work {", "A --> B: on", "B --> C: on", "}", "Work --> A: again")
    assert {arrow.source for arrow in machine.arrows if arrow.event == "again"} == {"B", "C"}


def test_styles_notes_and_comments_are_ignored() -> None:
    plain = drawn("[*] --> A", "A --> B: go")
    assert plain == drawn(
        "  direction LR",
        "%% a comment",
        "",
        'state "The first" as A',
        "[*] --> A: enqueued %% by the api",
        "\tA-->B : go %% on",
        "note right of A: see A --> Z",
        "note left of B",
        "A --> Z: not an arrow",
        "end note",
        'note "floating" as N1',
        "classDef hot fill:#f00,color:#fff",
        "class A,B hot",
        "B --> [*]",
    )


def test_line_endings_and_a_byte_order_mark_are_ignored() -> None:
    assert Machine.parse("m", "\ufeffstateDiagram-v2\r\n\t[*] --> A\r\n\tA --> B: go\r\n") == drawn(
        "[*] --> A", "A --> B: go"
    )


def test_machine_accepts_any_label_and_no_label() -> None:
    machine = drawn("[*] --> A", "A --> B", "B --> A: whatever (it: says)")
    assert machine.arrows == (Arrow("A", "", "B"), Arrow("B", "whatever (it: says)", "A"))
    assert [arrow.line for arrow in machine.arrows] == [3, 4]


def test_states_may_be_named_like_keywords() -> None:
    assert drawn("[*] --> note", "note --> class: go", "class --> state: go", "state --> end: go").states == (
        "note",
        "class",
        "state",
        "end",
    )


def test_order_notes_and_lines_do_not_affect_equality() -> None:
    one = Lifecycle.parse(
        "l", "stateDiagram-v2\n[*] --> a\na --> b: claim by a worker\nb --> c: succeed\nb --> d: fail"
    )
    two = Lifecycle("l", transitions=[("b", "fail", "d"), ("b", "succeed", "c"), ("a", "claim", "b")], initial="a")
    assert (one, hash(one), one.digest) == (two, hash(two), two.digest)
    assert one.arrows[0].note == "by a worker"
    assert one != Lifecycle("other", transitions=[("a", "claim", "b"), ("b", "succeed", "c"), ("b", "fail", "d")])


def test_digest_is_the_same_in_every_process() -> None:
    lifecycle = Lifecycle("l", transitions=[("a", "succeed", "b"), ("a", "fail", "c")])
    assert lifecycle.digest == "2eef3f0900eadff1ba882d3c74943248d93be8f74ca73098ae9ef589bf1d8318"


def test_machine_has_a_repr_and_a_table() -> None:
    machine = drawn("[*] --> A", "A --> B: a|b")
    assert repr(machine) == "<Machine m: 2 states, 1 transitions, starts in A>"
    assert machine.table() == "| From | Event | To |\n| --- | --- | --- |\n| A | a\\|b | B |\n"
    lifecycle = Lifecycle("l", transitions=[("a", "succeed at last", "b"), ("a", "fail", "c")])
    assert lifecycle.table().splitlines()[2] == "| a | succeed | b | at last |"


DOCUMENT = """\
# Two machines

```sh
# delivery
```

## The `lamp` and its switch
~~~mermaid
flowchart TD
~~~
```mermaid
%% first
stateDiagram-v2
  [*] --> off
  off --> on: press
```

## Other
````mermaid
stateDiagram-v2
  [*] --> a
  a --> b
````
"""


def test_heading_selects_one_of_several_diagrams(tmp_path: Path) -> None:
    file = tmp_path / "other.md"
    file.write_text(DOCUMENT, encoding="utf-8-sig", newline="\r\n")
    assert Machine.load(file, "lamp").arrows == (Arrow("off", "press", "on"),)
    assert Machine.load(file, "lamp").arrows[0].line == 15
    assert Machine.load(str(file)).states == ("a", "b")
    with pytest.raises(
        LifecycleError,
        match=r"other\.md has 2 state diagrams, 0 of them under a heading that names door: .*lamp.*line 12.*Other.*line 20",
    ):
        Machine.load(file, "door")


def test_document_with_one_diagram_needs_no_heading(tmp_path: Path) -> None:
    file = tmp_path / "lamp.md"
    file.write_text("```mermaid\nstateDiagram-v2\n[*] --> off\noff --> on: press\n```\n", encoding="utf-8")
    assert Machine.load(file).name == "lamp"
    file.write_text("no picture", encoding="utf-8")
    with pytest.raises(LifecycleError, match=r"lamp\.md has no ```mermaid block"):
        Machine.load(file)


def test_error_in_a_document_names_its_line(tmp_path: Path) -> None:
    file = tmp_path / "lamp.md"
    file.write_text("# Lamp\n\n```mermaid\nstateDiagram-v2\n[*] --> off\noff ~~> on\n```\n", encoding="utf-8")
    with pytest.raises(LifecycleError, match=r"^lamp \(lamp\.md\), line 6: 'off ~~> on' is not understood"):
        Machine.load(file)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "m: the diagram is empty"),
        ("graph TD\nA --> B", "m, line 1: found 'graph TD', but a diagram starts with `stateDiagram-v2`"),
        ("stateDiagram-v2\n[*] --> A", "m: there are no transitions"),
        ("stateDiagram-v2\nA --> B: go", "m: there is no initial state"),
        ("stateDiagram-v2\n[*] --> A\n[*] --> B\nA --> B: go", "m, line 3: B is a second initial state beside A"),
        ("stateDiagram-v2\n[*] --> [*]", "m, line 2: `[*] --> [*]` has no state"),
        ("stateDiagram-v2\n[*] --> A\nA --> B: go\n\nA -> B", "m, line 5: 'A -> B' is not understood"),
        ("stateDiagram-v2\n[*] --> A\nA: a description", "m, line 3: 'A: a description' is not understood"),
        ("stateDiagram-v2\n[*] --> A\nstate A <<choice>>", "m, line 3: 'state A <<choice>>' is not understood"),
        ("stateDiagram-v2\n[*] --> A\nA --> B:::hot", "m, line 3: 'A --> B:::hot' styles a state"),
        ("stateDiagram-v2\n[*] --> A\nA --> 2nd: go", "m, line 3: '2nd' in 'A --> 2nd: go' is not a state's name"),
        (f"stateDiagram-v2\n[*] --> A\nA --> {'x' * 65}", "m, line 3: 'xxx"),
        ("stateDiagram-v2\n[*] --> A\nA --> B: go\nA --> B: go", "m, line 4: the transition A --> B: go appears twice"),
        (
            "stateDiagram-v2\n[*] --> A\nA --> B: go\nA --> [*]",
            "m, line 4: state A is marked as final (`A --> [*]`) but has exits",
        ),
        ("stateDiagram-v2\n[*] --> A\nA --> B: go\n}", "m, line 4: this `}` closes nothing"),
        ("stateDiagram-v2\n[*] --> A\nstate C {\nA --> B: go", "m, line 3: composite C is not closed"),
        (
            "stateDiagram-v2\n[*] --> A\nstate C {\nA --> B: go\n}\nstate C {\n}",
            "m, line 6: composite C is opened a second time",
        ),
        (
            "stateDiagram-v2\n[*] --> A\nA --> C: go\nstate C {\nD --> E: go\n}",
            "m, line 3: composite C has no initial state",
        ),
        ("stateDiagram-v2\n[*] --> A\nstate C {\n}\nC --> A: go", "m, line 5: composite C has no states"),
        (
            "stateDiagram-v2\n[*] --> A\nstate C {\nA --> B: go\n}\nC --> [*]",
            "m, line 6: composite C is marked as final",
        ),
        ("stateDiagram-v2\n[*] --> A\nnote left of A\nA --> B: go", "m, line 3: this note has no `end note`"),
    ],
)
def test_invalid_diagram_is_refused_with_its_line(text: str, sentence: str) -> None:
    with pytest.raises(LifecycleError) as refused:
        Machine.parse("m", text)
    assert str(refused.value).startswith(sentence)


@pytest.mark.parametrize(
    ("name", "transitions", "initial", "sentence"),
    [
        ("m", [], None, "m: there are no transitions"),
        ("not a name", [("a", "go", "b")], None, "not a name: 'not a name' is not a name"),
        ("m", [("a b", "go", "b")], None, "m: 'a b' is not a state's name"),
        ("m", [("a", "go", "b")], "c", "m: the initial state c is in no transition: the states are a, b"),
        ("m", [("a", "go %% on", "b")], None, "m: the label 'go %% on' cannot be read back"),
    ],
)
def test_invalid_data_is_refused(
    name: str, transitions: list[tuple[str, str, str]], initial: str | None, sentence: str
) -> None:
    with pytest.raises(LifecycleError) as refused:
        Machine(name, transitions=transitions, initial=initial)
    assert str(refused.value).startswith(sentence)
