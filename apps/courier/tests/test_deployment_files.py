"""Promises about what stands beside the code: the tables of the README, the example of the settings, the units and the container file."""

import configparser
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from apps.courier import words
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
    """The cells of the table whose first line begins so."""
    table = PAGE.partition(f"\n| {heading} |")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" |")] for line in table]


# ---------------------------------------------------------------- settings
def test_the_page_lists_every_setting_with_its_default() -> None:
    listed = {row[0].strip("`"): row[1].strip("`") for row in rows("variable")}
    assert set(listed) == NAMES
    for name, field in Settings.model_fields.items():
        default = "must be set" if field.is_required() else "none" if field.default is None else field.default
        assert listed[f"COURIER_{name.upper()}"] == (f"{default:g}" if isinstance(default, float) else default)


def test_the_example_has_every_setting_once_and_no_secret() -> None:
    assert set(GIVEN) == NAMES
    assert len(re.findall(r"^COURIER_", EXAMPLE, re.MULTILINE)) == len(NAMES)
    assert [name for name in GIVEN if re.search("TOKEN|SECRET|CLIENT_ID|ADMINS", name) and GIVEN[name]] == []
    assert [line for line in EXAMPLE.splitlines() if line and not re.match(r"#|COURIER_\w+=\S*$", line)] == []


def test_the_example_filled_in_is_all_that_is_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With what the page says to write, and everything else left as it is, which is the default."""
    for name in [name for name in os.environ if name.startswith("COURIER_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    shown = dict(re.findall(r"^(COURIER_\w+)=(.+)$", PAGE.partition("```env\n")[2].partition("```")[0], re.MULTILINE))
    assert set(shown) >= REQUIRED
    filled = GIVEN | shown
    (tmp_path / ".env").write_text("".join(f"{name}={value}\n" for name, value in filled.items()), encoding="utf-8")
    settings = Settings.read()
    (tmp_path / ".env").write_text("".join(f"{name}={value}\n" for name, value in shown.items()), encoding="utf-8")
    assert settings == Settings.read()


# ---------------------------------------------------------------- what may go wrong
def test_the_page_says_of_every_error_what_the_user_is_told() -> None:
    told: dict[str, set[str]] = {}
    for _, code, leads, sentence in rows("what happened"):
        told.setdefault(code.strip("`"), set()).add(sentence)
        assert re.search("`(FAILED|QUEUED|EXPIRED)`", leads)
    assert told.pop("stale_file") == {"nothing"}
    assert words.say("en", "EXPIRED").endswith(" ".join(told.pop("")))
    assert told == {code: {words.say("en", words.reason(code))} for code in {*get_args(Code), "trouble", words.LOST, "unexpected"} - {"stale_file"}}


# ---------------------------------------------------------------- systemd
class Unit(configparser.RawConfigParser):
    """A unit, as an INI file whose keys keep their letters and may come twice."""

    def __init__(self, path: Path) -> None:
        super().__init__(strict=False, interpolation=None, delimiters=("=",), comment_prefixes=("#",))
        self.optionxform = str  # type: ignore[assignment, method-assign] # so it is meant to be set
        self.read_string(path.read_text(encoding="utf-8"))


def test_there_is_a_unit_for_the_bot_and_one_for_workers() -> None:
    assert [path.name for path in UNITS] == ["courier-bot.service", "courier-worker@.service"]
    assert [Unit(path)["Service"]["ExecStart"].partition(" -m ")[2] for path in UNITS] == ["apps.courier bot", "apps.courier worker"]


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_gives_the_courier_its_own_directory_and_nothing_else(path: Path) -> None:
    service = dict(Unit(path)["Service"])
    wanted = {
        "DynamicUser": "yes", "User": "courier", "StateDirectory": "courier", "StateDirectoryMode": "0700", "UMask": "0077", "NoNewPrivileges": "yes",
        "ProtectSystem": "strict", "ProtectHome": "yes", "PrivateTmp": "yes", "PrivateDevices": "yes", "CapabilityBoundingSet": "",
        "RestrictAddressFamilies": "AF_UNIX AF_INET AF_INET6", "EnvironmentFile": "/etc/courier.env",
    }
    assert {name: service.get(name) for name in wanted} == wanted
    assert service["RestartPreventExitStatus"] == "2"
    assert int(service["TimeoutStopSec"]) > 25 + 20
    assert "COURIER_" not in path.read_text(encoding="utf-8")


def test_both_units_are_shut_in_alike() -> None:
    own = {"ExecStartPre", "ExecStart"}
    bot, worker = ({name: value for name, value in Unit(path)["Service"].items() if name not in own} for path in UNITS)
    assert bot == worker


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    """With a Python where they say that one is."""
    python = tmp_path / "opt" / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    for path in UNITS:
        (tmp_path / path.name).write_text(path.read_text(encoding="utf-8").replace("/opt/courier/.venv", str(tmp_path / "opt" / ".venv")), encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *(str(tmp_path / path.name) for path in UNITS)], text=True, capture_output=True, timeout=60, check=False)
    assert (done.returncode, [line for line in done.stderr.splitlines() if "courier" in line]) == (0, []), done.stderr


# ---------------------------------------------------------------- the container
def said(instruction: str) -> list[str]:
    text = CONTAINER.read_text(encoding="utf-8").replace("\\\n", " ")
    return re.findall(rf"^{instruction} (.*)$", text, re.MULTILINE)


def test_the_container_has_no_secret_in_it_and_runs_as_nobody_special() -> None:
    assert said("FROM") == ["python:3.11-slim"]
    assert said("ARG") == []
    assert [line for line in said("ENV") if re.search(r"COURIER_|TOKEN|SECRET", line)] == []
    assert said("USER") == ["courier"]
    lines = CONTAINER.read_text(encoding="utf-8").splitlines()
    assert lines.index("USER courier") < next(place for place, line in enumerate(lines) if line.startswith("ENTRYPOINT"))


def test_the_container_takes_only_what_it_names_and_that_is_enough(tmp_path: Path) -> None:
    for line in said("COPY"):
        *sources, target = line.split()
        assert not [source for source in sources if source in {".", "./", "apps/", "apps"} or ".env" in source]
        place = tmp_path / target
        place.mkdir(parents=True, exist_ok=True)
        for source in sources:
            found = sorted(ROOT.glob(source))
            assert found, source
            for path in found:
                # As in a container, a directory gives what is in it. The engine itself is installed.
                if path.is_file():
                    shutil.copy(path, place)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("COURIER_")}
    given = {"BOT_TOKEN": f"1:{'x' * 30}", "ADMINS": "7", "FOLDER": "/Library", "YANDEX_TOKEN": "x" * 20}
    done = subprocess.run(
        [sys.executable, "-m", "apps.courier", "migrate"], cwd=tmp_path, text=True, capture_output=True, timeout=60, check=False,
        env=environment | {"PYTHONPATH": str(tmp_path)} | {f"COURIER_{name}": value for name, value in given.items()})
    assert (done.returncode, done.stdout) == (0, "The courier's tables are ready at sqlite:///courier.db.\n"), done.stderr
