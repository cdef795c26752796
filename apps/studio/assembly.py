"""Builds the studio from its settings."""

from importlib import import_module
from pathlib import Path
from typing import cast

from apps.common.database import make_engine

from .clients.originals import Originals
from .clients.provider import Provider
from .errors import BadSettings
from .jobs import Dependencies, Lifespan, Studio, build
from .prompt_guard import Moderator, PromptGuard
from .settings import Settings


def studio_from_settings(settings: Settings) -> Studio:
    """Build a studio. It opens no connection yet; each worker opens the provider when it starts."""
    provider, lifespan = _provider(settings)
    dependencies = Dependencies(
        _guard(settings.block_list), _moderator(settings.moderator), provider, _originals(settings)
    )
    return build(settings.database_url, make_engine(settings.database_url), dependencies, lifespan=lifespan)


def _provider(settings: Settings) -> tuple[Provider, Lifespan]:
    if settings.provider == "openai" and settings.api_key is not None:
        from .clients.openai_images import OpenAIImages

        images = OpenAIImages(settings.api_url, settings.api_key.get_secret_value(), settings.model)
        return images, images.open
    from .clients.local_painter import Painter

    painter = Painter()
    return painter, painter.open


def _originals(settings: Settings) -> Originals:
    if settings.bucket is None:
        return Originals.in_directory(Path(settings.storage).expanduser().absolute())
    bucket, prefix = settings.bucket
    secret = None if settings.s3_secret_key is None else settings.s3_secret_key.get_secret_value()
    return Originals.in_bucket(
        bucket,
        prefix,
        endpoint=settings.s3_endpoint,
        region=settings.s3_region,
        access_key=settings.s3_access_key,
        secret_key=secret,
    )


def _guard(file: Path | None) -> PromptGuard:
    """Read a block list: one word or phrase per line; lines that begin with # are comments."""
    if file is None:
        return PromptGuard()
    try:
        lines = [line.strip() for line in file.expanduser().read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, ValueError) as error:
        why = (error.strerror or "it cannot be opened") if isinstance(error, OSError) else "it is not UTF-8 text"
        raise BadSettings(
            f"STUDIO_BLOCK_LIST: cannot read {str(file)!r} ({why}). Give a file with one word or phrase per line."
        ) from None
    return PromptGuard.of(line for line in lines if not line.startswith("#"))


def _moderator(named: str | None) -> Moderator | None:
    if named is None:
        return None
    module, _, function = named.partition(":")
    try:
        found: object = getattr(import_module(module), function)
    except Exception as error:  # noqa: BLE001 - a user's module may raise anything on import
        why = f"{type(error).__name__}: {error}"
        raise BadSettings(
            f"STUDIO_MODERATOR: cannot import {named} ({why}). Check that the module exists and is on Python's path."
        ) from None
    if not callable(found):
        raise BadSettings(f"STUDIO_MODERATOR: {named} is not a function. Name a function that takes a prompt.")
    return cast("Moderator", found)
