"""The bot's handlers. The library is private: users without access always get the same answer."""

import asyncio
import logging
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from aiogram import Dispatcher
from aiogram.exceptions import TelegramAPIError
from aiogram.types import CallbackQuery, Message, Update
from aiogram.types import User as Account

from interlock import Refused

from . import formatting, status_message
from .callback_data import MAX_USER_ID, Browse, Callback, CallbackCodec, Cancel, Decide, Download, ViewFile
from .catalogue import Catalogue
from .clients.connections import Clients
from .clients.telegram_errors import translate_error
from .errors import PermanentError, TemporaryError, format_error
from .redact import user_alias
from .screens import Screen, ScreenBuilder
from .service import Service
from .service_models import FINAL, Decision, DeliveryView, Person, UpdateTime, User
from .settings import Settings

MAX_USERS = 50
"""Users that /users shows, at most."""
MAX_TOAST = 40
"""Characters of an answer that clients show briefly. A longer answer is an alert that stays until it is read."""
LISTING_TIMEOUT = 8.0
"""Seconds to wait for a listing, during which other updates wait too. The listing itself continues."""
REANNOUNCE_AFTER = timedelta(minutes=10)
"""After this long, an administrator is notified of a pending request again."""
MAX_ANNOUNCEMENTS = 10_000
"""Announcements whose time is remembered, at most."""
EPOCH = datetime.fromtimestamp(0, UTC)
DECISIONS: dict[str, Decision] = {"allow": "ACTIVE", "block": "BLOCKED"}
_ID = re.compile(r"[1-9][0-9]{0,15}")
log = logging.getLogger(__name__)


def make_dispatcher(service: Service, catalogue: Catalogue, clients: Clients, settings: Settings) -> Dispatcher:
    """Create the aiogram dispatcher. The bot answers in private chats only."""
    handlers, dispatcher = BotHandlers(service, catalogue, clients, settings), Dispatcher(disable_fsm=True)
    dispatcher.message.register(handlers.on_message)
    dispatcher.callback_query.register(handlers.on_button)
    return dispatcher


@dataclass(frozen=True)
class Sender:
    """The sender of an update, and the message to edit."""

    person: Person
    update_id: int
    message_id: int | None = None
    """The message whose button was pressed; it is edited. A text message is answered with a new one."""

    @property
    def id(self) -> int:
        """The user's ID, which is also the ID of their private chat."""
        return self.person.id

    def render(self, key: str, **values: object) -> str:
        return formatting.render(self.person.language, key, **values)


class BotHandlers:
    """Handles messages and buttons. It checks that the user has access before it answers."""

    def __init__(self, service: Service, catalogue: Catalogue, clients: Clients, settings: Settings) -> None:
        self._service, self._catalogue, self._clients, self._admins = service, catalogue, clients, settings.admins
        self._callbacks = CallbackCodec(settings.bot_token.get_secret_value())
        self._announced: dict[tuple[int, int], datetime] = {}
        """When each administrator was last notified of each request, oldest first."""

    # ------------------------------------------------------------ entry points
    async def on_message(self, message: Message, event_update: Update) -> None:
        """Handle a message. If that fails, the sender gets an error message."""
        # Only a private chat has the ID of its user.
        if message.from_user is None or message.chat.id != message.from_user.id:
            return
        sender = Sender(_to_person(message.from_user), event_update.update_id)
        try:
            await self._handle_message(sender, message)
        except Exception as error:  # noqa: BLE001 - the bot continues, and the user is told
            _log_failure(sender, error, logging.ERROR)
            await self._notify(sender.id, Screen(sender.render("wrong")))

    async def on_button(self, query: CallbackQuery, event_update: Update) -> None:
        """Handle a pressed button. Every press gets one answer, so that the client stops waiting."""
        answer: str | None = None
        if query.message is not None and query.message.chat.id == query.from_user.id:
            sender = Sender(_to_person(query.from_user), event_update.update_id, query.message.message_id)
            try:
                answer = await self._handle_button(sender, query)
            except Exception as error:  # noqa: BLE001 - as above
                _log_failure(sender, error, logging.ERROR)
                answer = sender.render("wrong")
        try:
            await self._clients.bot.answer_callback_query(
                query.id,
                formatting.truncate(answer, formatting.MAX_CALLBACK_ANSWER) if answer else None,
                show_alert=len(answer or "") > MAX_TOAST,
            )
        except TelegramAPIError as error:
            # Usually the answer came too late, for example because a press is handled again after a crash.
            log.info(
                "A button pressed by %s could not be answered: %s",
                user_alias(query.from_user.id),
                translate_error(error),
            )

    async def _handle_message(self, sender: Sender, message: Message) -> None:
        command, argument = _parse_command(message.text or "")
        at = UpdateTime(message.date, sender.update_id)
        if command == "start":
            await self._start(sender, at)
        elif sender.id in self._admins and command in DECISIONS:
            await self._decide_command(sender, command, argument, at)
        elif sender.id in self._admins and command == "users":
            await self._show(sender, Screen(_format_users(sender, await asyncio.to_thread(self._service.users))))
        elif sender.id in self._admins and command == "status":
            overview = await asyncio.to_thread(self._service.overview)
            await self._show(
                sender, Screen(status_message.format_status(sender.person.language, overview, datetime.now(UTC)))
            )
        elif await self._is_active(sender):
            help = [sender.render("help"), *([sender.render("help_admin")] if sender.id in self._admins else [])]
            await self._show(sender, Screen("\n\n".join(help)))
        else:
            await self._show(sender, Screen(sender.render("closed")))

    async def _handle_button(self, sender: Sender, query: CallbackQuery) -> str | None:
        """Handle a button. Return the answer to show. Forged data gets the same answer as an outdated button."""
        callback = self._callbacks.unpack(query.data, sender.id)
        if isinstance(callback, Decide) and sender.id in self._admins:
            # A press has no date. Its message is older than every later command, and those take precedence.
            date = query.message.date if isinstance(query.message, Message) else EPOCH
            await self._decide(sender, callback.user_id, callback.status, UpdateTime(date, sender.update_id))
            return None
        return await self._dispatch(sender, callback) if await self._is_active(sender) else sender.render("closed")

    async def _dispatch(self, sender: Sender, callback: Callback | None) -> str | None:
        match callback:
            case Browse(folder_id, page):
                return await self._browse(sender, folder_id, page)
            case ViewFile(file_id):
                return await self._show_file(sender, file_id)
            case Download(file_id, nonce):
                return await self._download(sender, file_id, nonce)
            case Cancel(job_id):
                return await self._cancel(sender, job_id)
            case _:
                return sender.render("outdated")

    async def _is_active(self, sender: Sender) -> bool:
        user = await asyncio.to_thread(self._service.user, sender.id)
        return user is not None and user.status == "ACTIVE"

    # ------------------------------------------------------------ users
    async def _start(self, sender: Sender, at: UpdateTime) -> None:
        user, _ = await asyncio.to_thread(self._service.register, sender.person, at)
        if user.status == "ACTIVE":
            if sender.id in self._admins and (
                waiting := sum(each.status == "PENDING" for each in await asyncio.to_thread(self._service.users))
            ):
                # Requests from before the administrator first wrote to the bot could not be announced.
                await self._notify(sender.id, Screen(sender.render("waiting_people", count=waiting)))
            if sentence := await self._browse(sender, None, 1):
                await self._show(sender, Screen(sentence))
            return
        if user.status == "PENDING":
            await self.announce(user, at.at)
        await self._show(sender, Screen(sender.render("pending" if user.status == "PENDING" else "closed")))

    async def announce(self, user: User, at: datetime) -> None:
        """Notify each administrator of a request for access, unless they were notified recently.

        If an administrator cannot be reached, the next /start tries again. After a restart the bot may announce a
        request again, which does no harm.
        """
        for admin in self._admins:
            last = self._announced.get((user.id, admin))
            if last is not None and at - last < REANNOUNCE_AFTER:
                continue
            known = await asyncio.to_thread(self._service.user, admin)
            if await self._notify(
                admin, ScreenBuilder(self._callbacks, admin, known.language if known else None).admission_request(user)
            ):
                self._announced.pop((user.id, admin), None)
                self._announced[user.id, admin] = at
        while len(self._announced) > MAX_ANNOUNCEMENTS:
            del self._announced[next(iter(self._announced))]

    async def _decide_command(self, sender: Sender, command: str, argument: str, at: UpdateTime) -> None:
        if _ID.fullmatch(argument) and int(argument) <= MAX_USER_ID:
            await self._decide(sender, int(argument), DECISIONS[command], at)
        else:
            await self._show(sender, Screen(sender.render("usage", command=command)))

    async def _decide(self, sender: Sender, user_id: int, status: Decision, at: UpdateTime) -> None:
        if status == "BLOCKED" and user_id in self._admins:
            await self._show(sender, Screen(sender.render("is_admin")))
            return
        user = await asyncio.to_thread(self._service.decide, user_id, status, by=sender.id, at=at)
        if user is None:
            sentence = sender.render("no_user", id=user_id)
        elif user.status != status:
            sentence = sender.render("replaced", status=sender.render(user.status), id=user_id)
        else:
            sentence = sender.render("decided", name=user.name, id=user.id, status=sender.render(user.status))
            if status == "ACTIVE":
                await self._notify(user.id, Screen(formatting.render(user.language, "welcome")))
        await self._show(sender, Screen(sentence))

    # ------------------------------------------------------------ library
    async def _browse(self, sender: Sender, folder_id: int | None, page: int) -> str | None:
        """Show a folder, or return why it cannot be shown."""
        try:
            async with asyncio.timeout(LISTING_TIMEOUT):
                found = await self._catalogue.page(self._clients.disk, folder_id, page)
        except TimeoutError:
            return sender.render("looking")
        except TemporaryError as error:
            _log_failure(sender, error)
            return sender.render("disk_unreachable")
        except PermanentError as error:
            if error.code == "not_found" and folder_id is not None:
                return sender.render("gone")
            _log_failure(sender, error)
            if error.code == "disk_token_rejected":
                await asyncio.to_thread(self._service.alert_token)
            return sender.render("disk_refused")
        await self._show(sender, self._screens(sender).folder(found))
        return None

    async def _show_file(self, sender: Sender, file_id: int) -> str | None:
        file = await asyncio.to_thread(self._catalogue.entry, file_id)
        if file is None or file.is_folder:
            return sender.render("gone")
        active = await asyncio.to_thread(self._service.active_delivery, sender.id, file_id)
        if active is None:
            await self._show(sender, self._screens(sender).file(file))
            return None
        await self._follow(sender, active)
        return sender.render("already")

    # ------------------------------------------------------------ deliveries
    async def _download(self, sender: Sender, file_id: int, nonce: str) -> str | None:
        try:
            delivery, created = await asyncio.to_thread(self._service.order, sender.id, file_id, nonce)
        except Refused:
            return sender.render("closed")
        except PermanentError:
            return sender.render("gone")
        await self._follow(sender, delivery)
        return sender.render("ordered" if created else "already")

    async def _cancel(self, sender: Sender, job_id: str) -> str | None:
        delivery = await asyncio.to_thread(self._service.cancel, sender.id, job_id)
        if delivery is None:
            return sender.render("outdated")
        await self._follow(sender, delivery)
        if delivery.state in FINAL:
            return sender.render("cancelled" if delivery.state == "CANCELLED" else "already_ended")
        return sender.render("stopping" if delivery.stopping else "on_its_way")

    async def _follow(self, sender: Sender, delivery: DeliveryView) -> None:
        """Make the sender's message the card of this delivery."""
        card_id = await self._show_card(sender, delivery)
        if card_id is not None:
            await asyncio.to_thread(self._service.attach_card, delivery.job_id, card_id)

    async def _show_card(self, sender: Sender, delivery: DeliveryView) -> int | None:
        """Show the card and return its message ID. After a temporary error, the card updater shows it later."""
        file = await asyncio.to_thread(self._catalogue.entry, delivery.file_id)
        try:
            return await self._show(sender, self._screens(sender).card(delivery, file))
        except TemporaryError as error:
            _log_failure(sender, error)
            return sender.message_id

    # ------------------------------------------------------------ messages
    def _screens(self, sender: Sender) -> ScreenBuilder:
        return ScreenBuilder(self._callbacks, sender.id, sender.person.language)

    async def _show(self, sender: Sender, screen: Screen) -> int:
        """Show a screen in the sender's message, or in a new one if that cannot be edited."""
        telegram = self._clients.telegram
        if sender.message_id is not None:
            try:
                await telegram.edit_text(sender.id, sender.message_id, screen.text, screen.keyboard)
            except PermanentError as error:
                if error.code != "refused":
                    raise
            else:
                return sender.message_id
        return await telegram.send_text(sender.id, screen.text, screen.keyboard)

    async def _notify(self, user_id: int, screen: Screen) -> bool:
        """Send a screen to a user. Return False if they cannot be reached."""
        try:
            await self._clients.telegram.send_text(user_id, screen.text, screen.keyboard)
        except (PermanentError, TemporaryError) as error:
            log.warning("A message to %s could not be sent: %s", user_alias(user_id), error)
            return False
        return True


def _to_person(account: Account) -> Person:
    return Person(account.id, formatting.truncate(formatting.plain_text(account.full_name), 200), account.language_code)


def _parse_command(text: str) -> tuple[str, str]:
    """Split a message into its command, if it has one, and the argument."""
    first, _, argument = text.strip().partition(" ")
    return (first[1:].partition("@")[0].lower(), argument.strip()) if first.startswith("/") else ("", "")


def _format_users(sender: Sender, users: list[User]) -> str:
    """List users, pending requests first, then the newest, as many as fit into one message."""
    ordered = sorted(users, key=lambda user: (user.status != "PENDING", -user.asked_at.timestamp()))
    lines = [
        sender.render(
            "user_line",
            id=user.id,
            status=sender.render(user.status),
            name=formatting.truncate(user.name, formatting.MAX_LABEL),
        )
        for user in ordered[:MAX_USERS]
    ]
    text = sender.render("users", count=len(users))
    for number, line in enumerate(lines):
        more = sender.render("more", count=len(users) - number)
        if formatting.telegram_length(f"{text}\n{line}\n{more}") > formatting.MAX_TEXT:
            return f"{text}\n{more}"
        text += f"\n{line}"
    return text if len(users) <= MAX_USERS else f"{text}\n{sender.render('more', count=len(users) - MAX_USERS)}"


def _log_failure(sender: Sender, error: Exception, level: int = logging.WARNING) -> None:
    log.log(level, "A request of %s failed: %s", user_alias(sender.id), format_error(error))
