"""Settings: defaults, validation with one sentence per fault, and no secrets in any message."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from apps.common.tests import settings_variables
from apps.studio.assembly import studio_from_settings
from apps.studio.clients.local_painter import Painter
from apps.studio.clients.openai_images import OpenAIImages
from apps.studio.errors import BadSettings, Refusal
from apps.studio.settings import Settings

ROOT = Path(__file__).parents[3]
KEY, SECRET = "canary-api-key", "canary-s3-secret"
Read = Callable[..., Settings]
refusal = partial(settings_variables.refusal, BadSettings)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Read:
    return settings_variables.reader(monkeypatch, tmp_path, "STUDIO_", Settings.read)


# ---------------------------------------------------------------- accepted settings
def test_no_setting_is_required(read: Read) -> None:
    settings = read()
    assert (settings.database_url, settings.storage, settings.provider) == (
        "sqlite:///studio.db",
        "studio-files",
        "local",
    )
    assert (settings.api_url, settings.api_key, settings.model) == ("https://api.openai.com/v1", None, None)
    assert (settings.bucket, settings.block_list, settings.moderator) == (None, None, None)


def test_environment_overrides_the_file(read: Read, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(
        "OTHER=1\nSTUDIO_STORAGE=elsewhere\nSTUDIO_MODEL=gpt-image-1\nSTUDIO_API_KEY=\n", encoding="utf-8"
    )
    assert (read().storage, read().model, read().api_key) == ("elsewhere", "gpt-image-1", None)
    assert read(STORAGE="here").storage == "here"


def test_example_file_lists_all_settings(read: Read, tmp_path: Path) -> None:
    text = (ROOT / "apps" / "studio" / ".env.example").read_text(encoding="utf-8")
    (tmp_path / ".env").write_text(text, encoding="utf-8")
    assert read() == Settings.model_construct(**{name: field.default for name, field in Settings.model_fields.items()})
    assert {line.partition("=")[0] for line in text.splitlines() if line.startswith("STUDIO_")} == {
        f"STUDIO_{name.upper()}" for name in Settings.model_fields
    }


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("s3://pictures", ("pictures", "")),
        ("s3://pictures/", ("pictures", "")),
        ("s3://pictures/studio", ("pictures", "studio")),
        (" s3://my.pictures/a/b/ ", ("my.pictures", "a/b")),
        ("pictures", None),
        ("/srv/studio files", None),
        ("~/pictures", None),
    ],
)
def test_storage_is_a_directory_or_a_bucket(read: Read, given: str, meant: tuple[str, str] | None) -> None:
    assert read(STORAGE=given).bucket == meant


def test_openai_provider_with_a_key_is_accepted(read: Read) -> None:
    settings = read(PROVIDER="openai", API_KEY=f" {KEY} ", API_URL="https://images.example.org/v1/")
    assert (settings.api_key, settings.api_url) == (SecretStr(KEY), "https://images.example.org/v1")


def test_settings_are_immutable(read: Read) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        read().storage = "elsewhere"  # type: ignore[misc] # that is what is asked


# ---------------------------------------------------------------- refused settings
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DATABASE_URL", "mysql://root:canary@host/x"),
        ("DATABASE_URL", "canary"),
        ("DATABASE_URL", "postgresql://[canary/x"),
        ("STORAGE", "gs://canary"),
        ("STORAGE", "s3://"),
        ("STORAGE", "s3:/canary"),
        ("STORAGE", "s3:canary"),
        ("STORAGE", "file:/srv/canary"),
        ("STORAGE", "S3://canary"),
        ("STORAGE", "gs:canary"),
        ("STORAGE", "s3://x"),
        ("STORAGE", "s3://Canary/x"),
        ("STORAGE", "s3://canary/../x"),
        ("STORAGE", "s3://canary//x"),
        ("STORAGE", "s3://canary/x?y"),
        ("STORAGE", "https://canary.example.org/x"),
        ("STORAGE", "canary\nother"),
        ("STORAGE", " "),
        ("S3_ENDPOINT", "http://storage.example.org"),
        ("S3_ENDPOINT", "canary"),
        ("S3_ENDPOINT", "https://user:canary@example.org"),
        ("API_URL", "http://api.openai.com/v1"),
        ("API_URL", "api.openai.com"),
        ("API_URL", "https://"),
        ("API_URL", "https://example.org/?canary"),
        ("API_KEY", "canary canary"),
        ("API_KEY", "canary\r\nX: y"),
        ("API_KEY", "canaryй"),
        ("S3_SECRET_KEY", "canary canary"),
        ("S3_ACCESS_KEY", "canary\n."),
        ("PROVIDER", "canary"),
        ("MODEL", "canary canary"),
        ("S3_REGION", "canary canary"),
        ("MODERATOR", "canary"),
        ("MODERATOR", "canary.py"),
        ("MODERATOR", "canary:"),
        ("MODERATOR", ":canary"),
        ("MODERATOR", "canary:f()"),
        ("MODERATOR", "a b:canary"),
    ],
)
def test_invalid_value_gives_one_sentence_with_the_variable(read: Read, name: str, value: str) -> None:
    said = refusal(read, **({"STORAGE": "s3://pictures"} if name.startswith("S3_") else {}), **{name: value})
    assert said.startswith(f"STUDIO_{name} ")
    assert said.endswith(".")
    assert ". " not in said
    assert "\n" not in said


def test_openai_provider_without_a_key_is_refused(read: Read) -> None:
    assert refusal(read, PROVIDER="openai").startswith("STUDIO_API_KEY is not set: ")
    assert refusal(read, PROVIDER="openai", API_KEY="canary canary").count("STUDIO_API_KEY") == 1


@pytest.mark.parametrize(("has", "lacks"), [("S3_ACCESS_KEY", "S3_SECRET_KEY"), ("S3_SECRET_KEY", "S3_ACCESS_KEY")])
def test_access_key_and_secret_are_required_together(read: Read, has: str, lacks: str) -> None:
    assert (
        refusal(read, STORAGE="s3://pictures", **{has: "canary"})
        == f"STUDIO_{lacks} is not set: set it together with STUDIO_{has}, or remove both."
    )


@pytest.mark.parametrize("name", ["S3_ENDPOINT", "S3_REGION", "S3_ACCESS_KEY", "S3_SECRET_KEY"])
def test_s3_setting_without_a_bucket_is_refused(read: Read, name: str) -> None:
    said = refusal(read, **{name: "https://canary.example.org"})
    assert (
        said == f"STUDIO_{name} has no effect, because STUDIO_STORAGE is a directory: "
        "remove it, or set STUDIO_STORAGE to s3://bucket/prefix."
    )


def test_misspelled_name_suggests_the_right_one(read: Read) -> None:
    assert refusal(read, STROAGE="x") == "STUDIO_STROAGE is not a setting. Did you mean STUDIO_STORAGE?"
    assert refusal(read, QQQQ="x") == "STUDIO_QQQQ is not a setting. The README lists all settings."


def test_postgres_scheme_is_normalized(read: Read) -> None:
    assert (
        refusal(read, DATABASE_URL="postgres://user:canary@host/x")
        == "STUDIO_DATABASE_URL begins with postgres://: write postgresql:// instead."
    )


def test_repr_contains_no_secret(read: Read) -> None:
    settings = read(
        PROVIDER="openai",
        API_KEY=KEY,
        STORAGE="s3://pictures",
        S3_ACCESS_KEY="access",
        S3_SECRET_KEY=SECRET,
        DATABASE_URL="postgresql://studio:canary-password@host/studio",
    )
    assert "canary" not in f"{settings} {settings!r} {settings.model_dump(exclude={'database_url'})}"


# ---------------------------------------------------------------- the studio built from settings
def test_building_the_studio_opens_no_connection(read: Read, tmp_path: Path) -> None:
    studio = studio_from_settings(read())
    assert isinstance(studio.dependencies.provider, Painter)
    studio.close()
    assert list(tmp_path.iterdir()) == []


def test_openai_provider_is_used_if_configured(read: Read) -> None:
    studio = studio_from_settings(read(PROVIDER="openai", API_KEY=KEY))
    assert isinstance(studio.dependencies.provider, OpenAIImages)
    studio.close()


def test_block_list_is_read_line_by_line(read: Read, tmp_path: Path) -> None:
    (tmp_path / "words").write_text("\ufeff# not allowed here\n\n  Dark  Tower \nmordor\n", encoding="utf-8")
    guard = studio_from_settings(read(BLOCK_LIST="words")).dependencies.guard
    guard.validate("a dark lighthouse # not allowed here")
    for prompt in ("the DARK TOWER", "Mordor, at dawn"):
        with pytest.raises(Refusal) as refused:
            guard.validate(prompt)
        assert refused.value.code == "prompt_blocked"


@pytest.mark.parametrize("made", [None, b"\xff\xfe\xff"], ids=["missing", "binary"])
def test_unreadable_block_list_is_refused(read: Read, tmp_path: Path, made: bytes | None) -> None:
    """The studio must not run without it."""
    if made is not None:
        (tmp_path / "words").write_bytes(made)
    with pytest.raises(BadSettings, match=r"^STUDIO_BLOCK_LIST: cannot read 'words' \([^)]+\)\. Give [^.]+\.$"):
        studio_from_settings(read(BLOCK_LIST="words"))


def test_moderator_is_imported(read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "moderation_of_a_test.py").write_text(
        "def judge(prompt):\n    return 'no' if 'x' in prompt else None\n\n\nNAME = 'judge'\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "moderation_of_a_test", raising=False)
    moderator = studio_from_settings(read(MODERATOR="moderation_of_a_test:judge")).dependencies.moderator
    assert moderator is not None
    assert (moderator("a fox"), moderator("a fish")) == ("no", None)
    for missing in ("moderation_of_a_test:other", "no_such_module_anywhere:judge", "moderation_of_a_test:NAME"):
        with pytest.raises(BadSettings, match=f"^STUDIO_MODERATOR: .*{missing}.* "):
            studio_from_settings(read(MODERATOR=missing))
