"""Checks whether Telegram and Yandex Disk accept the courier's settings."""

import re

from aiogram.exceptions import AiogramError

from .clients.telegram_errors import translate_error
from .errors import BotTokenRejected, CourierError, NotCheckedError, PermanentError, TemporaryError
from .jobs import Courier
from .settings import Settings

STARTUP_TIMEOUT = 10
"""Seconds for the first request to Telegram. The bot and workers start anyway if it is slow or unreachable."""
BOT_REJECTED = (
    "Telegram rejects the bot token. Copy it again from @BotFather to COURIER_BOT_TOKEN, "
    "and check COURIER_TELEGRAM_URL."
)


async def fetch_bot_name(courier: Courier) -> str:
    """Ask Telegram for the bot's user name. The clients must be open.

    Raises `BotTokenRejected` if Telegram rejects the token, and `TemporaryError` if Telegram cannot answer.
    """
    try:
        me = await courier.clients.bot.get_me(request_timeout=STARTUP_TIMEOUT)
    except (AiogramError, OSError) as error:
        translated = translate_error(error)
        # Only the token can be wrong here: Telegram answers 404 to an unknown token and 401 to a revoked one.
        raise (BotTokenRejected(BOT_REJECTED) if isinstance(translated, PermanentError) else translated) from None
    return f"@{me.username}"


async def check_external_systems(courier: Courier, settings: Settings) -> list[tuple[bool, str]]:
    """Check Telegram and Yandex Disk. Return for each whether it works, and a line with the result or the fix."""
    async with courier.clients.open(dry_run=True):
        return [await _check_telegram(courier, settings), await _check_disk(courier, settings)]


async def _check_telegram(courier: Courier, settings: Settings) -> tuple[bool, str]:
    try:
        name = await fetch_bot_name(courier)
    except BotTokenRejected as error:
        return False, str(error)
    except TemporaryError as error:
        advice = f"Check that {settings.telegram_url} is reachable from here, and COURIER_TELEGRAM_URL."
        return False, f"{first_sentence(error)} {advice}"
    return True, f"Telegram: connected as {name}; files of up to {settings.max_file_size // 2**20} MiB."


async def _check_disk(courier: Courier, settings: Settings) -> tuple[bool, str]:
    try:
        total = (await courier.clients.disk.list_folder(settings.folder, offset=0, limit=1)).total
    except PermanentError as error:
        advice = {
            "disk_token_rejected": "Yandex Disk rejects the token, and it could not be renewed. "
            "Check COURIER_YANDEX_TOKEN, or COURIER_YANDEX_CLIENT_ID, COURIER_YANDEX_CLIENT_SECRET "
            "and COURIER_YANDEX_REFRESH_TOKEN.",
            "forbidden": "Yandex Disk denies access with this token. "
            "Check that its application has the permission cloud_api:disk.read.",
            "not_found": f"Yandex Disk has no folder {settings.folder}. Check COURIER_FOLDER.",
        }
        return False, advice.get(error.code, f"{first_sentence(error)} Check COURIER_FOLDER and COURIER_YANDEX_TOKEN.")
    except NotCheckedError as error:
        return False, f"Yandex Disk was not checked. {error}"
    except TemporaryError as error:
        advice_line = f"Check that {settings.yandex_url} and {settings.yandex_oauth_url} are reachable from here."
        return False, f"{first_sentence(error)} {advice_line}"
    return True, f"Yandex Disk: found {settings.folder} with {total} {'item' if total == 1 else 'items'}."


def first_sentence(error: CourierError) -> str:
    """Return what happened, without the rest of the message, which says what a job does about it."""
    return f"{re.split(r'[.:] ', str(error))[0].rstrip('.')}."
