"""Runs the bot, or a worker, until a signal."""

import asyncio
import logging

from aiogram.exceptions import AiogramError
from aiogram.types import BotCommand

from apps.common.signals import STOPPING_MESSAGE, Say, stop_on_signal

from . import formatting
from .clients.telegram_errors import translate_error
from .errors import BotTokenRejected, PermanentError, TemporaryError
from .jobs import Courier
from .settings import Settings
from .startup_checks import BOT_REJECTED, STARTUP_TIMEOUT, fetch_bot_name, first_sentence

_log = logging.getLogger(__name__)


def run_bot(courier: Courier, settings: Settings, say: Say) -> None:
    """Answer users and update their cards until SIGTERM or SIGINT. A second signal ends the process at once."""
    asyncio.run(_run_bot(courier, settings, say))


async def _run_bot(courier: Courier, settings: Settings, say: Say) -> None:
    from .bot import make_dispatcher
    from .card_updater import CardUpdater
    from .catalogue import Catalogue
    from .polling import UpdatePoller
    from .service import Service

    with stop_on_signal() as stop:
        async with courier.clients.open():
            await _announce_bot(courier, say)
            await _delete_webhook(courier)
            await _set_menu(courier)
            service, catalogue = Service(courier, settings), Catalogue(courier.engine, settings.folder)
            poller = UpdatePoller(make_dispatcher(service, catalogue, courier.clients, settings), courier.clients)
            cards = CardUpdater(service, catalogue, courier.clients, settings)
            tasks = [asyncio.ensure_future(poller.run(stop)), asyncio.ensure_future(cards.run(stop))]
            for task in tasks:
                # If one task ends, the other stops too.
                task.add_done_callback(lambda _: stop.set())
            say("The bot is running.")
            await stop.wait()
            say("Stopping: finishing what has started.")
            try:
                await asyncio.gather(*tasks)
            except PermanentError as error:
                raise (BotTokenRejected(BOT_REJECTED) if error.code == "bot_token_rejected" else error) from None


def run_worker(courier: Courier, say: Say, *, slots: int) -> None:
    """Deliver files until SIGTERM or SIGINT; then running deliveries may finish, and the rest return to the queue.

    A second signal ends the process at once.
    """
    asyncio.run(_run_worker(courier, say, slots))


async def _run_worker(courier: Courier, say: Say, slots: int) -> None:
    with stop_on_signal() as stop:
        async with courier.clients.open():
            await _announce_bot(courier, say)
        async with courier.app.worker(slots=slots):
            say(f"The worker is running and delivers up to {slots} {'file' if slots == 1 else 'files'} at once.")
            await stop.wait()
            say(STOPPING_MESSAGE)


# ---------------------------------------------------------------- startup
async def _announce_bot(courier: Courier, say: Say) -> None:
    """Print the bot's name. A rejected token ends the process here; an unreachable Telegram does not."""
    try:
        say(f"Telegram: connected as {await fetch_bot_name(courier)}.")
    except TemporaryError as error:
        say(f"{first_sentence(error)} The courier starts anyway and continues when Telegram responds.")


async def _delete_webhook(courier: Courier) -> None:
    """Delete the bot's webhook: Telegram rejects polling while one is set."""
    try:
        await courier.clients.bot.delete_webhook(request_timeout=STARTUP_TIMEOUT)
    except (AiogramError, OSError) as error:
        _log.warning("The webhook could not be deleted: %s", translate_error(error))


async def _set_menu(courier: Courier) -> None:
    """Set the commands in Telegram's menu. If that fails, the next start tries again."""
    try:
        for language in (None, "ru"):
            commands = [
                BotCommand(command=each, description=formatting.render(language, f"menu_{each}"))
                for each in ("start", "help")
            ]
            await courier.clients.bot.set_my_commands(commands, language_code=language, request_timeout=STARTUP_TIMEOUT)
    except (AiogramError, OSError) as error:
        _log.warning("The bot's menu could not be set: %s", translate_error(error))
