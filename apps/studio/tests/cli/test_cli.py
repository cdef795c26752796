"""The command line: output, exit codes, and one sentence without secrets for each wrong call."""

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from apps.common.tests.command_runner import RunCommand
from apps.studio.tests.cli.cli_kit import NO_ID, ROOT, TIME_LIMIT, once, ordered, refused
from apps.studio.tests.fake_images_api import FakeImages


# ---------------------------------------------------------------- the database
def test_migrate_creates_the_tables_and_names_the_next_step(call: RunCommand, database_url: str) -> None:
    first, second = call("migrate"), call("migrate")
    assert first == second
    assert first.code == 0
    assert first.out.startswith(f"The studio's tables are ready at {database_url.partition(':')[0]}://")
    assert "`python -m apps.studio user add NAME --credits 20`" in first.err


@once
def test_database_file_is_accessible_only_to_its_owner(
    call: RunCommand, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environment.setenv("STUDIO_DATABASE_URL", "sqlite:///studio.db")
    before = os.umask(0o022)
    try:
        assert call("migrate").out == "The studio's tables are ready at sqlite:///studio.db.\n"
        assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.glob("studio.db*")} == {0o600}
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)


@once
def test_reading_commands_create_no_file(call: RunCommand, environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment.setenv("STUDIO_DATABASE_URL", "sqlite:///none.db")
    for arguments in (
        ("jobs",),
        ("users",),
        ("check",),
        ("show", NO_ID),
        ("dead", "list"),
        ("create", "ann", "a fox"),
        ("run",),
        ("serve",),
        ("worker",),
    ):
        refused(call(*arguments), 1, "`python -m apps.studio migrate`")
    assert list(tmp_path.iterdir()) == []


@once
def test_unreachable_database_is_one_sentence_without_the_password(
    call: RunCommand, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("STUDIO_DATABASE_URL", "postgresql://studio:canary-password@127.0.0.1:1/studio")
    for command in ("migrate", "users"):
        said = call(command)
        refused(said, 1, "STUDIO_DATABASE_URL")
        assert "canary" not in said.err


# ---------------------------------------------------------------- wrong usage
@once
@pytest.mark.parametrize("command", ["migrate", "users", "check", "run", "serve", "worker"])
def test_invalid_settings_are_one_sentence(call: RunCommand, environment: pytest.MonkeyPatch, command: str) -> None:
    environment.setenv("STUDIO_STORE", "x")
    refused(call(command), 2, "STUDIO_STORE is not a setting. Did you mean STUDIO_STORAGE?")
    environment.delenv("STUDIO_STORE")
    environment.setenv("STUDIO_BLOCK_LIST", "no-such-file")
    refused(call(command), 2, "STUDIO_BLOCK_LIST: cannot read 'no-such-file'")


@once
@pytest.mark.parametrize(
    "arguments",
    [
        ("wrong",),
        ("worker", "--slots", "0"),
        ("run", "--http", "nowhere"),
        ("user", "add"),
        ("credits", "grant", "ann", "0"),
        ("credits", "grant", "ann", "many"),
        ("user", "add", "bob", "--credits", "-1"),
        ("create", "ann", "a fox", "--size", "1x1"),
        ("create", "ann", "a fox", "--seed", "-1"),
        ("show", "1"),
        ("show", "' OR 1=1"),
        ("reject", NO_ID),
        ("jobs", "--limit", "0"),
    ],
)
def test_wrong_usage_exits_with_2_and_changes_nothing(studio: RunCommand, arguments: tuple[str, ...]) -> None:
    assert studio(*arguments).code == 2
    assert json.loads(studio("jobs", "--json").out) == []
    assert len(json.loads(studio("users", "--json").out)) == 1


@once
def test_port_in_use_is_one_sentence(studio: RunCommand, images: FakeImages) -> None:
    refused(studio("serve", "--http", httpx.URL(images.url).netloc.decode()), 1, "Cannot listen at ")


@once
def test_help_lists_all_commands(call: RunCommand) -> None:
    said = call("--help")
    assert said.code == 0
    names = (
        "migrate",
        "user",
        "users",
        "credits",
        "create",
        "follow",
        "jobs",
        "show",
        "save",
        "reject",
        "dead",
        "check",
        "run",
        "serve",
        "worker",
    )
    assert [name for name in names if not re.search(rf"^  {name} ", said.out, re.MULTILINE)] == []


# ---------------------------------------------------------------- long-running commands
@once
def test_run_makes_pictures_until_a_signal(studio: RunCommand, tmp_path: Path) -> None:
    """The studio runs in its own process with the local provider."""
    id = ordered(studio("create", "ann", "a fox in the snow"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "STUDIO_PROVIDER": "local"}
    command = [sys.executable, "-m", "apps.studio", "run", "--http", "127.0.0.1:0", "--slots", "1"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            said = [process.stdout.readline().strip() for _ in range(4)]
            assert said[3] == "the worker is ready"
            assert said[:2] == [
                "making up to 1 picture at a time with the local provider",
                "storing originals in studio-files",
            ]
            assert httpx.get(said[2].removeprefix("listening at ") + "/health", timeout=TIME_LIMIT).status_code == 200
            assert studio("follow", id).code == 0
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIME_LIMIT) == 0
            stopping, *end = process.stdout.read().splitlines()
            assert end == ["stopped listening"]
            assert stopping == (
                "stopping: running jobs have 25 s to finish, then they return to the queue; "
                "a second signal exits at once and costs each running job a try"
            )
        finally:
            process.kill()
    assert (tmp_path / "studio-files" / "originals" / id).read_bytes().startswith(b"\x89PNG")


def no_run(*_: object, **given: object) -> None:
    """Replaces the server, which would run until a signal."""
    if isinstance(http := given["http"], socket.socket):
        http.close()


@once
@pytest.mark.parametrize("command", ["run", "worker"])
def test_unusable_storage_is_one_sentence_at_startup(
    studio: RunCommand, environment: pytest.MonkeyPatch, tmp_path: Path, command: str
) -> None:
    environment.setattr("apps.studio.web.server.run_until_signal", no_run)
    (tmp_path / "taken").write_text("a file", encoding="utf-8")
    for storage in ("taken", "taken/below"):
        environment.setenv("STUDIO_STORAGE", storage)
        said = studio(command) if command == "worker" else studio(command, "--http", "127.0.0.1:0")
        refused(said, 1, f"STUDIO_STORAGE: cannot use '{storage}'.")


@once
def test_unreachable_bucket_is_a_warning_and_the_studio_runs(
    studio: RunCommand, environment: pytest.MonkeyPatch
) -> None:
    """Jobs are retried until the bucket is reachable."""
    environment.setattr("apps.studio.web.server.run_until_signal", no_run)
    for name, value in (
        ("STORAGE", "s3://pictures"),
        ("S3_ENDPOINT", "http://127.0.0.1:1"),
        ("S3_ACCESS_KEY", "x"),
        ("S3_SECRET_KEY", "canary-secret"),
    ):
        environment.setenv(f"STUDIO_{name}", value)
    said = studio("worker")
    assert said.code == 0
    assert "The storage failed" in said.err
    assert "canary" not in said.err
