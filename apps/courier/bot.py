"""What the bot answers. The library is closed: whoever no administrator let in hears one and the same sentence, whatever they do."""

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

from . import status_page, words
from .callbacks import LARGEST_USER, Browse, Callback, Callbacks, Cancel, Decide, Download, Look
from .catalogue import Catalogue
from .desk import FINAL, Decision, Desk, Moment, Person, Shown, User
from .errors import Refusal, Trouble
from .keyboards import Screen, Screens
from .outside import Outside
from .polling import told
from .redact import who
from .settings import Settings
from .telegram import translate

LISTED = 50
"""People that /users shows at most."""
TOAST = 40
"""Characters that a client shows in passing; an answer that is longer stays until it is read."""
PATIENCE = 8.0
"""Seconds for which somebody waits for a listing, and with them everybody who speaks meanwhile. The listing itself goes on."""
AGAIN = timedelta(minutes=10)
"""After so long an administrator is told once more of somebody who still asks."""
REMEMBERED = 10_000
"""Requests for admission of which it is known when they were told."""
EPOCH = datetime.fromtimestamp(0, UTC)
DECISIONS: dict[str, Decision] = {"allow": "ACTIVE", "block": "BLOCKED"}
_ID = re.compile(r"[1-9][0-9]{0,15}")
log = logging.getLogger(__name__)


def dispatcher(desk: Desk, catalogue: Catalogue, outside: Outside, settings: Settings) -> Dispatcher:
    """All that the bot answers, for aiogram. It answers in private chats only."""
    reception, made = Reception(desk, catalogue, outside, settings), Dispatcher(disable_fsm=True)
    made.message.register(reception.heard)
    made.callback_query.register(reception.pressed)
    return made


@dataclass(frozen=True)
class Visitor:
    """Who spoke or pressed, in which update, and where their answer is drawn."""

    person: Person
    update_id: int
    message_id: int | None = None
    """The message whose button was pressed: it is edited. A word is answered by a new one."""

    @property
    def id(self) -> int:
        """Also the id of the private chat with them."""
        return self.person.id

    def say(self, key: str, **values: object) -> str:
        return words.say(self.person.language, key, **values)


class Reception:
    """Hears what people say and press. Nothing is answered before it is known that they were let in."""

    def __init__(self, desk: Desk, catalogue: Catalogue, outside: Outside, settings: Settings) -> None:
        self._desk, self._catalogue, self._outside, self._admins = desk, catalogue, outside, settings.admins
        self._callbacks = Callbacks(settings.bot_token.get_secret_value())
        self._announced: dict[tuple[int, int], datetime] = {}
        """When an administrator was last told that somebody asks; the longest ago first."""

    # ------------------------------------------------------------ two doors
    async def heard(self, message: Message, event_update: Update) -> None:
        """A message. If answering it fails, its sender is told so."""
        # A private chat has the id of the person in it, and no other chat has.
        if message.from_user is None or message.chat.id != message.from_user.id:
            return
        visitor = Visitor(_person(message.from_user), event_update.update_id)
        try:
            await self._answer(visitor, message)
        except Exception as error:  # noqa: BLE001 - whatever it is, the bot goes on, and people are told
            _log(visitor, error, logging.ERROR)
            await self._tell(visitor.id, Screen(visitor.say("wrong")))

    async def pressed(self, query: CallbackQuery, event_update: Update) -> None:
        """A button. Every press is answered once, if only so that it stops blinking."""
        answer: str | None = None
        if query.message is not None and query.message.chat.id == query.from_user.id:
            visitor = Visitor(_person(query.from_user), event_update.update_id, query.message.message_id)
            try:
                answer = await self._react(visitor, query)
            except Exception as error:  # noqa: BLE001 - as above
                _log(visitor, error, logging.ERROR)
                answer = visitor.say("wrong")
        try:
            await self._outside.bot.answer_callback_query(query.id, words.fit(answer, words.ANSWER) if answer else None, show_alert=len(answer or "") > TOAST)
        except TelegramAPIError as error:
            # Most often it came too late, as it does whenever a press is handled once more after a crash.
            log.info("A press of %s could not be answered: %s", who(query.from_user.id), translate(error))

    async def _answer(self, visitor: Visitor, message: Message) -> None:
        command, argument = _command(message.text or "")
        moment = Moment(message.date, visitor.update_id)
        if command == "start":
            await self._start(visitor, moment)
        elif visitor.id in self._admins and command in DECISIONS:
            await self._command_to_decide(visitor, command, argument, moment)
        elif visitor.id in self._admins and command == "users":
            await self._draw(visitor, Screen(_users(visitor, await asyncio.to_thread(self._desk.users))))
        elif visitor.id in self._admins and command == "status":
            overview = await asyncio.to_thread(self._desk.overview)
            await self._draw(visitor, Screen(status_page.page(visitor.person.language, overview, datetime.now(UTC))))
        elif await self._let_in(visitor):
            help = [visitor.say("help"), *([visitor.say("help_admin")] if visitor.id in self._admins else [])]
            await self._draw(visitor, Screen("\n\n".join(help)))
        else:
            await self._draw(visitor, Screen(visitor.say("closed")))

    async def _react(self, visitor: Visitor, query: CallbackQuery) -> str | None:
        """Do what a button says, and return what to answer in passing. A made-up one gets the answer that an old one gets."""
        pressed = self._callbacks.unpack(query.data, visitor.id)
        if isinstance(pressed, Decide) and visitor.id in self._admins:
            # A press has no date. Its message's is older than every command that came after it, and those count for more.
            date = query.message.date if isinstance(query.message, Message) else EPOCH
            await self._decide(visitor, pressed.user_id, pressed.status, Moment(date, visitor.update_id))
            return None
        return await self._serve(visitor, pressed) if await self._let_in(visitor) else visitor.say("closed")

    async def _serve(self, visitor: Visitor, pressed: Callback | None) -> str | None:
        match pressed:
            case Browse(folder_id, page):
                return await self._browse(visitor, folder_id, page)
            case Look(file_id):
                return await self._look(visitor, file_id)
            case Download(file_id, nonce):
                return await self._download(visitor, file_id, nonce)
            case Cancel(job_id):
                return await self._cancel(visitor, job_id)
            case _:
                return visitor.say("outdated")

    async def _let_in(self, visitor: Visitor) -> bool:
        user = await asyncio.to_thread(self._desk.user, visitor.id)
        return user is not None and user.status == "ACTIVE"

    # ------------------------------------------------------------ people
    async def _start(self, visitor: Visitor, moment: Moment) -> None:
        user, _ = await asyncio.to_thread(self._desk.register, visitor.person, moment)
        if user.status == "ACTIVE":
            if visitor.id in self._admins and (waiting := sum(each.status == "PENDING" for each in await asyncio.to_thread(self._desk.users))):
                # Whoever asked before the administrator could be written to was announced to nobody.
                await self._tell(visitor.id, Screen(visitor.say("waiting_people", count=waiting)))
            if sentence := await self._browse(visitor, None, 1):
                await self._draw(visitor, Screen(sentence))
            return
        if user.status == "PENDING":
            await self.announce(user, moment.at)
        await self._draw(visitor, Screen(visitor.say("pending" if user.status == "PENDING" else "closed")))

    async def announce(self, user: User, at: datetime) -> None:
        """Tell each administrator that somebody asks for admission, unless that was told a short while ago.

        Who could not be told is told at the next /start. A bot that was started anew tells it once more: that does no harm, and not to be told does.
        """
        for admin in self._admins:
            last = self._announced.get((user.id, admin))
            if last is not None and at - last < AGAIN:
                continue
            known = await asyncio.to_thread(self._desk.user, admin)
            if await self._tell(admin, Screens(self._callbacks, admin, known.language if known else None).request(user)):
                self._announced.pop((user.id, admin), None)
                self._announced[user.id, admin] = at
        while len(self._announced) > REMEMBERED:
            del self._announced[next(iter(self._announced))]

    async def _command_to_decide(self, visitor: Visitor, command: str, argument: str, moment: Moment) -> None:
        if _ID.fullmatch(argument) and int(argument) <= LARGEST_USER:
            await self._decide(visitor, int(argument), DECISIONS[command], moment)
        else:
            await self._draw(visitor, Screen(visitor.say("usage", command=command)))

    async def _decide(self, visitor: Visitor, user_id: int, status: Decision, moment: Moment) -> None:
        if status == "BLOCKED" and user_id in self._admins:
            await self._draw(visitor, Screen(visitor.say("is_admin")))
            return
        user = await asyncio.to_thread(self._desk.decide, user_id, status, by=visitor.id, at=moment)
        if user is None:
            sentence = visitor.say("no_user", id=user_id)
        elif user.status != status:
            sentence = visitor.say("stands", status=visitor.say(user.status), id=user_id)
        else:
            sentence = visitor.say("decided", name=user.name, id=user.id, status=visitor.say(user.status))
            if status == "ACTIVE":
                await self._tell(user.id, Screen(words.say(user.language, "welcome")))
        await self._draw(visitor, Screen(sentence))

    # ------------------------------------------------------------ the library
    async def _browse(self, visitor: Visitor, folder_id: int | None, page: int) -> str | None:
        """Show a folder, or return why it cannot be shown."""
        try:
            async with asyncio.timeout(PATIENCE):
                found = await self._catalogue.page(self._outside.disk, folder_id, page)
        except TimeoutError:
            return visitor.say("looking")
        except Trouble as error:
            _log(visitor, error)
            return visitor.say("disk_trouble")
        except Refusal as error:
            if error.code == "not_found" and folder_id is not None:
                return visitor.say("gone")
            _log(visitor, error)
            if error.code == "shut_out":
                await asyncio.to_thread(self._desk.alert_token)
            return visitor.say("disk_refused")
        await self._draw(visitor, self._screens(visitor).folder(found))
        return None

    async def _look(self, visitor: Visitor, file_id: int) -> str | None:
        file = await asyncio.to_thread(self._catalogue.entry, file_id)
        if file is None or file.is_folder:
            return visitor.say("gone")
        active = await asyncio.to_thread(self._desk.active, visitor.id, file_id)
        if active is None:
            await self._draw(visitor, self._screens(visitor).file(file))
            return None
        await self._follow(visitor, active)
        return visitor.say("already")

    # ------------------------------------------------------------ deliveries
    async def _download(self, visitor: Visitor, file_id: int, nonce: str) -> str | None:
        try:
            shown, created = await asyncio.to_thread(self._desk.order, visitor.id, file_id, nonce)
        except Refused:
            return visitor.say("closed")
        except Refusal:
            return visitor.say("gone")
        await self._follow(visitor, shown)
        return visitor.say("ordered" if created else "already")

    async def _cancel(self, visitor: Visitor, job_id: str) -> str | None:
        shown = await asyncio.to_thread(self._desk.cancel, visitor.id, job_id)
        if shown is None:
            return visitor.say("outdated")
        await self._follow(visitor, shown)
        if shown.state in FINAL:
            return visitor.say("cancelled" if shown.state == "CANCELLED" else "already_ended")
        return visitor.say("stopping" if shown.stopping else "on_its_way")

    async def _follow(self, visitor: Visitor, shown: Shown) -> None:
        """Make the visitor's message the card of this delivery."""
        card_id = await self._card(visitor, shown)
        if card_id is not None:
            await asyncio.to_thread(self._desk.card, shown.job_id, card_id)

    async def _card(self, visitor: Visitor, shown: Shown) -> int | None:
        """Draw the card, and return in which message it is. Trouble is no harm: the cards are brought up to date later."""
        file = await asyncio.to_thread(self._catalogue.entry, shown.file_id)
        try:
            return await self._draw(visitor, self._screens(visitor).card(shown, file))
        except Trouble as error:
            _log(visitor, error)
            return visitor.message_id

    # ------------------------------------------------------------ drawing
    def _screens(self, visitor: Visitor) -> Screens:
        return Screens(self._callbacks, visitor.id, visitor.person.language)

    async def _draw(self, visitor: Visitor, screen: Screen) -> int:
        """Show this in the visitor's message, or in a new one if there is none that can be edited."""
        telegram = self._outside.telegram
        if visitor.message_id is not None:
            try:
                await telegram.edit(visitor.id, visitor.message_id, screen.text, screen.keyboard)
            except Refusal as error:
                if error.code != "refused":
                    raise
            else:
                return visitor.message_id
        return await telegram.say(visitor.id, screen.text, screen.keyboard)

    async def _tell(self, user_id: int, screen: Screen) -> bool:
        """Show this to somebody in a new message; False if they cannot be reached."""
        try:
            await self._outside.telegram.say(user_id, screen.text, screen.keyboard)
        except (Refusal, Trouble) as error:
            log.warning("%s could not be told something: %s", who(user_id), error)
            return False
        return True


def _person(account: Account) -> Person:
    return Person(account.id, words.fit(words.plain(account.full_name), 200), account.language_code)


def _command(text: str) -> tuple[str, str]:
    """The command of a message, if it is one, and what follows it."""
    first, _, argument = text.strip().partition(" ")
    return (first[1:].partition("@")[0].lower(), argument.strip()) if first.startswith("/") else ("", "")


def _users(visitor: Visitor, everybody: list[User]) -> str:
    """Those who wait for a decision first, then the newest; as many as one message holds."""
    ordered = sorted(everybody, key=lambda user: (user.status != "PENDING", -user.asked_at.timestamp()))
    lines = [visitor.say("user_line", id=user.id, status=visitor.say(user.status), name=words.fit(user.name, words.LABEL)) for user in ordered[:LISTED]]
    text = visitor.say("users", count=len(everybody))
    for number, line in enumerate(lines):
        more = visitor.say("more", count=len(everybody) - number)
        if words.units(f"{text}\n{line}\n{more}") > words.TEXT:
            return f"{text}\n{more}"
        text += f"\n{line}"
    return text if len(everybody) <= LISTED else f"{text}\n{visitor.say('more', count=len(everybody) - LISTED)}"


def _log(visitor: Visitor, error: Exception, level: int = logging.WARNING) -> None:
    log.log(level, "What %s asked for could not be done: %s", who(visitor.id), told(error))
