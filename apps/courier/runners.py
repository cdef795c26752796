"""The long-running side: the bot, or a worker, until a signal; and the first words with Telegram and Yandex Disk."""

import asyncio
import logging
import re

from aiogram.exceptions import AiogramError
from aiogram.types import BotCommand

from apps.common.signals import STOPPING, Say, signals

from . import words
from .errors import BotRefused, CourierError, Refusal, Trouble, Untried
from .jobs import Courier
from .settings import Settings
from .telegram import translate

PATIENCE = 10
"""Seconds that the first question to Telegram may take: what runs for long starts all the same if it is slow or away."""
REFUSED = "Telegram refuses the bot's token. Copy it anew from @BotFather into COURIER_BOT_TOKEN, and see COURIER_TELEGRAM_URL."
_log = logging.getLogger(__name__)


# ---------------------------------------------------------------- the first words
async def greeted(courier: Courier) -> str:
    """The bot's own name, as Telegram knows it, while the outside is open. `BotRefused` for a token that can never do, `Trouble` if nobody knows."""
    try:
        me = await courier.outside.bot.get_me(request_timeout=PATIENCE)
    except (AiogramError, OSError) as error:
        known = translate(error)
        # Nothing but the token can be wrong with this question: Telegram answers 404 to one that it never gave, and 401 to one that it took back.
        raise (BotRefused(REFUSED) if isinstance(known, Refusal) else known) from None
    return f"@{me.username}"


async def found(courier: Courier, settings: Settings) -> list[tuple[bool, str]]:
    """Whether Telegram and Yandex Disk can be worked with, and a line about each that says what is there or what to mend."""
    async with courier.outside.open(trial=True):
        return [await _telegram(courier, settings), await _disk(courier, settings)]


async def _telegram(courier: Courier, settings: Settings) -> tuple[bool, str]:
    try:
        name = await greeted(courier)
    except BotRefused as error:
        return False, str(error)
    except Trouble as error:
        return False, f"{_first(error)} See that {settings.telegram_url} can be reached from here, and COURIER_TELEGRAM_URL."
    return True, f"Telegram knows the bot as {name}, and takes files of up to {settings.largest // 2**20} MiB from it."


async def _disk(courier: Courier, settings: Settings) -> tuple[bool, str]:
    try:
        total = (await courier.outside.disk.list(settings.folder, offset=0, limit=1)).total
    except Refusal as error:
        mend = {
            "shut_out": "Yandex refuses the token, and no other could be had for it. See COURIER_YANDEX_TOKEN, or, where it is to be renewed, "
            "COURIER_YANDEX_CLIENT_ID, COURIER_YANDEX_CLIENT_SECRET and COURIER_YANDEX_REFRESH_TOKEN.",
            "forbidden": "Yandex Disk lets nobody read with this token. See that its application has the right cloud_api:disk.read.",
            "not_found": f"Yandex Disk has no folder {settings.folder}. See COURIER_FOLDER.",
        }
        return False, mend.get(error.code, f"{_first(error)} See COURIER_FOLDER and COURIER_YANDEX_TOKEN.")
    except Untried as error:
        return False, f"Yandex Disk was not asked. {error}"
    except Trouble as error:
        return False, f"{_first(error)} See that {settings.yandex_url} and {settings.yandex_oauth_url} can be reached from here."
    return True, f"Yandex Disk has {settings.folder}, with {total} {'item' if total == 1 else 'items'} in it."


def _first(error: CourierError) -> str:
    """What happened, without what a job would do about it."""
    return f"{re.split(r'[.:] ', str(error))[0].rstrip('.')}."


async def _begun(courier: Courier, say: Say) -> None:
    """A token that is refused ends it here. A Telegram that is away may come back: that is said, and no more."""
    try:
        say(f"Telegram knows the bot as {await greeted(courier)}")
    except Trouble as error:
        say(f"{_first(error)} The courier starts all the same, and goes on when Telegram is back.")


async def _unhooked(courier: Courier) -> None:
    """While a webhook is set, Telegram gives updates to nobody who asks for them."""
    try:
        await courier.outside.bot.delete_webhook(request_timeout=PATIENCE)
    except (AiogramError, OSError) as error:
        _log.warning("Whether a webhook is set could not be asked: %s", translate(error))


async def _menu(courier: Courier) -> None:
    """What people see in Telegram's own menu. It can wait for the next start."""
    try:
        for spoken in (None, "ru"):
            shown = [BotCommand(command=each, description=words.say(spoken, f"menu_{each}")) for each in ("start", "help")]
            await courier.outside.bot.set_my_commands(shown, language_code=spoken, request_timeout=PATIENCE)
    except (AiogramError, OSError) as error:
        _log.warning("The bot's menu could not be set: %s", translate(error))


# ---------------------------------------------------------------- until a signal
def bot_until_signal(courier: Courier, settings: Settings, say: Say) -> None:
    """Answer people and keep their cards up to date, until SIGTERM or SIGINT. A second signal ends the process at once."""
    asyncio.run(_bot(courier, settings, say))


async def _bot(courier: Courier, settings: Settings, say: Say) -> None:
    from .bot import dispatcher
    from .cards import Cards
    from .catalogue import Catalogue
    from .desk import Desk
    from .polling import Polling

    with signals() as stop:
        async with courier.outside.open():
            await _begun(courier, say)
            await _unhooked(courier)
            await _menu(courier)
            desk, catalogue = Desk(courier, settings), Catalogue(courier.engine, settings.folder)
            polling = Polling(dispatcher(desk, catalogue, courier.outside, settings), courier.outside)
            cards = Cards(desk, catalogue, courier.outside, settings)
            tasks = [asyncio.ensure_future(polling.run(stop)), asyncio.ensure_future(cards.run(stop))]
            for task in tasks:
                # Should one end by itself, so does the other.
                task.add_done_callback(lambda _: stop.set())
            say("the bot listens")
            await stop.wait()
            say("stopping: what was begun is finished first")
            try:
                await asyncio.gather(*tasks)
            except Refusal as error:
                raise (BotRefused(REFUSED) if error.code == "bot_refused" else error) from None


def worker_until_signal(courier: Courier, say: Say, *, slots: int) -> None:
    """Deliver, until SIGTERM or SIGINT; then what runs may finish, and the rest is given back. A second signal ends the process at once."""
    asyncio.run(_worker(courier, say, slots))


async def _worker(courier: Courier, say: Say, slots: int) -> None:
    with signals() as stop:
        async with courier.outside.open():
            await _begun(courier, say)
        async with courier.app.worker(slots=slots):
            say(f"the worker delivers up to {slots} {'file' if slots == 1 else 'files'} at once")
            await stop.wait()
            say(STOPPING)
