"""The mutants of questions and their answers."""

from tests.mutant import Mutant

_RECONCILE = "src/interlock/reconcile"
_ANSWERS = ("tests/loops/test_answers.py",)

QUESTION_MUTANTS = [
    Mutant(
        "token spelling",
        "A token with a changed character is refused",
        "src/interlock/jobs/tokens.py",
        "def read(",
        "if signer.dumps(named) == token:",
        "if True:",
        ("tests/pure/test_tokens.py",),
    ),
    Mutant(
        "token after a redrive",
        "A mailed link answers the redriven job, too",
        "src/interlock/jobs/asking.py",
        "def ask(",
        "job.root or job.id",
        "job.id",
        ("tests/loops/test_questions.py",),
        "sqlite",
    ),
    Mutant(
        "answer to every redrive",
        "A mailed link answers only the newest job of a chain of redrives",
        f"{_RECONCILE}/answer.py",
        "def _find_asking(",
        "context.store.external.asking_job(root) or root",
        "root",
        _ANSWERS,
        "sqlite",
    ),
    Mutant(
        "late answer",
        "An answer after the deadline is refused",
        f"{_RECONCILE}/answer.py",
        "def _check_open(",
        "if deadline.passed or",
        "if",
        _ANSWERS,
        "sqlite",
    ),
    Mutant(
        "answer after a cancel",
        "An answer after a cancel request is refused",
        f"{_RECONCILE}/answer.py",
        "def _check_open(",
        "if execution.must_cancel:",
        "if False:",
        _ANSWERS,
        "sqlite",
    ),
    Mutant(
        "dead answerer",
        "A job whose answerer died waits until the same deadline",
        f"{_RECONCILE}/deadline.py",
        "def _settlement(",
        "if not deadline.passed:",
        "if False:",
        ("tests/loops/test_questions.py",),
        "sqlite",
    ),
]
