"""The studio put together from its settings."""

from importlib import import_module
from pathlib import Path
from typing import cast

from apps.common.database import connect

from .errors import BadSettings
from .jobs import Lifespan, Means, Studio, build
from .originals import Originals
from .prompt_guard import Moderator, PromptGuard
from .providers import Provider
from .settings import Settings


def assembled(settings: Settings) -> Studio:
    """The studio with these settings. It opens nothing yet; each of its workers opens the provider when it starts."""
    provider, lifespan = _provider(settings)
    means = Means(_guard(settings.block_list), _moderator(settings.moderator), provider, _originals(settings))
    return build(settings.database_url, connect(settings.database_url), means, lifespan=lifespan)


def _provider(settings: Settings) -> tuple[Provider, Lifespan]:
    if settings.provider == "openai" and settings.api_key is not None:
        from .providers.openai import Images

        images = Images(settings.api_url, settings.api_key.get_secret_value(), settings.model)
        return images, images.open
    from .providers.painter import Painter

    painter = Painter()
    return painter, painter.open


def _originals(settings: Settings) -> Originals:
    if settings.bucket is None:
        return Originals.in_directory(Path(settings.storage).expanduser().absolute())
    bucket, prefix = settings.bucket
    secret = None if settings.s3_secret_key is None else settings.s3_secret_key.get_secret_value()
    return Originals.in_bucket(
        bucket, prefix, endpoint=settings.s3_endpoint, region=settings.s3_region, access_key=settings.s3_access_key, secret_key=secret)


def _guard(file: Path | None) -> PromptGuard:
    """One that blocks what stands in this file: a word or a phrase on each line; what begins with # is a remark."""
    if file is None:
        return PromptGuard()
    try:
        lines = [line.strip() for line in file.expanduser().read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, ValueError) as error:
        why = (error.strerror or "it cannot be opened") if isinstance(error, OSError) else "it is no text in UTF-8"
        raise BadSettings(f"STUDIO_BLOCK_LIST names {str(file)!r}, which cannot be read ({why}): give a file with a word or a phrase on each line.") from None
    return PromptGuard.of(line for line in lines if not line.startswith("#"))


def _moderator(named: str | None) -> Moderator | None:
    if named is None:
        return None
    module, _, function = named.partition(":")
    try:
        found: object = getattr(import_module(module), function)
    except Exception as error:  # noqa: BLE001 - it is somebody's own module, which may do anything while it is imported
        why = f"{type(error).__name__}: {error}"
        raise BadSettings(f"STUDIO_MODERATOR names {named}, which cannot be imported ({why}): see that it is there, and where Python looks.") from None
    if not callable(found):
        raise BadSettings(f"STUDIO_MODERATOR names {named}, which is no function: write one that is given a prompt.")
    return cast("Moderator", found)
