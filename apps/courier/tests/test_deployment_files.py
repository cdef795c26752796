"""The files next to the code: tables of the README, the example settings, systemd units and the container file."""

import configparser
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from apps.courier import formatting
from apps.courier.errors import Code
from apps.courier.settings import Settings

ROOT = Path(__file__).parents[3]
COURIER = ROOT / "apps" / "courier"
DEPLOY = COURIER / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))
CONTAINER = DEPLOY / "Containerfile"
PAGE = (COURIER / "README.md").read_text(encoding="utf-8")
EXAMPLE = (COURIER / ".env.example").read_text(encoding="utf-8")
NAMES = {f"COURIER_{name.upper()}" for name in Settings.model_fields}
GIVEN = dict(re.findall(r"^(COURIER_\w+)=(.*)$", EXAMPLE, re.MULTILINE))
REQUIRED = {f"COURIER_{name.upper()}" for name, field in Settings.model_fields.items() if field.is_required()}


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the README's table with this first heading."""
    table = PAGE.partition(f"\n| {heading} |")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" |")] for line in table]


# ---------------------------------------------------------------- settings
def test_readme_lists_every_setting_with_its_default() -> None:
    listed = {row[0].strip("`"): row[1].strip("`") for row in rows("variable")}
    assert set(listed) == NAMES
    for name, field in Settings.model_fields.items():
        default = "must be set" if field.is_required() else "none" if field.default is None else field.default
        assert listed[f"COURIER_{name.upper()}"] == (f"{default:g}" if isinstance(default, float) else default)


def test_example_has_every_setting_once_and_no_secret() -> None:
    assert set(GIVEN) == NAMES
    assert len(re.findall(r"^COURIER_", EXAMPLE, re.MULTILINE)) == len(NAMES)
    assert [name for name in GIVEN if re.search("TOKEN|SECRET|CLIENT_ID|ADMINS", name) and GIVEN[name]] == []
    assert [line for line in EXAMPLE.splitlines() if line and not re.match(r"#|COURIER_\w+=\S*$", line)] == []


def test_example_with_the_required_values_is_complete(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The required values come from the README; all other values equal the defaults."""
    for name in [name for name in os.environ if name.startswith("COURIER_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    shown = dict(re.findall(r"^(COURIER_\w+)=(.+)$", PAGE.partition("```env\n")[2].partition("```")[0], re.MULTILINE))
    assert set(shown) >= REQUIRED
    filled = GIVEN | shown
    (tmp_path / ".env").write_text("".join(f"{name}={value}\n" for name, value in filled.items()), encoding="utf-8")
    settings = Settings.load()
    (tmp_path / ".env").write_text("".join(f"{name}={value}\n" for name, value in shown.items()), encoding="utf-8")
    assert settings == Settings.load()


# ---------------------------------------------------------------- errors
def test_readme_shows_the_user_message_of_every_error() -> None:
    errors = {(code.strip("`"), state) for _, code, state in rows("what happened")}
    assert [state for _, state in errors if not re.search("`(FAILED|QUEUED|EXPIRED)`", state)] == []
    messages = {code.strip("`"): message for code, message in rows("code of the error")}
    assert formatting.render("en", "EXPIRED").endswith(messages.pop("none, it expired"))
    # A stale file is downloaded again, so its user reads nothing.
    codes = {*get_args(Code), "temporary", formatting.LEASE_LOST, "unexpected"}
    assert {code for code, _ in errors} == codes | {"none"}
    assert messages == {code: formatting.render("en", formatting.failure_key(code)) for code in codes - {"stale_file"}}


# ---------------------------------------------------------------- systemd
class Unit(configparser.RawConfigParser):
    """A systemd unit as an INI file with case-sensitive keys that may repeat."""

    def __init__(self, path: Path) -> None:
        super().__init__(strict=False, interpolation=None, delimiters=("=",), comment_prefixes=("#",))
        self.optionxform = str  # type: ignore[assignment, method-assign] # so it is meant to be set
        self.read_string(path.read_text(encoding="utf-8"))


def test_there_is_a_unit_for_the_bot_and_one_for_workers() -> None:
    assert [path.name for path in UNITS] == ["courier-bot.service", "courier-worker@.service"]
    assert [Unit(path)["Service"]["ExecStart"].partition(" -m ")[2] for path in UNITS] == [
        "apps.courier bot",
        "apps.courier worker",
    ]


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_unit_may_write_only_to_its_own_directory(path: Path) -> None:
    service = dict(Unit(path)["Service"])
    wanted = {
        "DynamicUser": "yes",
        "User": "courier",
        "StateDirectory": "courier",
        "StateDirectoryMode": "0700",
        "UMask": "0077",
        "NoNewPrivileges": "yes",
        "ProtectSystem": "strict",
        "ProtectHome": "yes",
        "PrivateTmp": "yes",
        "PrivateDevices": "yes",
        "CapabilityBoundingSet": "",
        "RestrictAddressFamilies": "AF_UNIX AF_INET AF_INET6",
        "EnvironmentFile": "/etc/courier.env",
    }
    assert {name: service.get(name) for name in wanted} == wanted
    assert service["RestartPreventExitStatus"] == "2"
    assert int(service["TimeoutStopSec"]) > 25 + 20
    assert "COURIER_" not in path.read_text(encoding="utf-8")


def test_both_units_have_the_same_restrictions() -> None:
    own = {"ExecStartPre", "ExecStart"}
    bot, worker = ({name: value for name, value in Unit(path)["Service"].items() if name not in own} for path in UNITS)
    assert bot == worker


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    """The test provides a Python at the path that the units name."""
    python = tmp_path / "opt" / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    for path in UNITS:
        (tmp_path / path.name).write_text(
            path.read_text(encoding="utf-8").replace("/opt/courier/.venv", str(tmp_path / "opt" / ".venv")),
            encoding="utf-8",
        )
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *(str(tmp_path / path.name) for path in UNITS)],
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, [line for line in done.stderr.splitlines() if "courier" in line]) == (0, []), done.stderr


# ---------------------------------------------------------------- container
def instructions(instruction: str) -> list[str]:
    text = CONTAINER.read_text(encoding="utf-8").replace("\\\n", " ")
    return re.findall(rf"^{instruction} (.*)$", text, re.MULTILINE)


def test_container_has_no_secret_and_runs_as_an_unprivileged_user() -> None:
    assert instructions("FROM") == ["python:3.11-slim"]
    assert instructions("ARG") == []
    assert [line for line in instructions("ENV") if re.search(r"COURIER_|TOKEN|SECRET", line)] == []
    assert instructions("USER") == ["courier"]
    lines = CONTAINER.read_text(encoding="utf-8").splitlines()
    assert lines.index("USER courier") < next(
        place for place, line in enumerate(lines) if line.startswith("ENTRYPOINT")
    )


def test_container_copies_only_named_files_and_they_are_enough(tmp_path: Path) -> None:
    for line in instructions("COPY"):
        *sources, target = line.split()
        assert not [source for source in sources if source in {".", "./", "apps/", "apps"} or ".env" in source]
        place = tmp_path / target
        place.mkdir(parents=True, exist_ok=True)
        for source in sources:
            found = sorted(ROOT.glob(source))
            assert found, source
            for path in found:
                # As in a container build, a directory source copies its content. The engine itself is installed.
                if path.is_file():
                    shutil.copy(path, place)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("COURIER_")}
    given = {"BOT_TOKEN": f"1:{'x' * 30}", "ADMINS": "7", "FOLDER": "/Library", "YANDEX_TOKEN": "x" * 20}
    done = subprocess.run(
        [sys.executable, "-m", "apps.courier", "migrate"],
        cwd=tmp_path,
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
        env=environment | {"PYTHONPATH": str(tmp_path)} | {f"COURIER_{name}": value for name, value in given.items()},
    )
    assert (done.returncode, done.stdout) == (0, "The courier's tables are ready at sqlite:///courier.db.\n"), (
        done.stderr
    )
