"""What a message shows: its text, and the buttons under it."""

from dataclasses import dataclass

from aiogram.types import InlineKeyboardButton, InlineKeyboardMarkup

from . import words
from .callbacks import Browse, Callback, Callbacks, Cancel, Decide, Download, Look
from .catalogue import Entry, Page
from .desk import FINAL, Shown, User

BAR = 10


@dataclass(frozen=True)
class Screen:
    """A message as it should look."""

    text: str
    keyboard: InlineKeyboardMarkup | None = None


class Screens:
    """Draws for one user, in their language. Only they can use the buttons."""

    def __init__(self, callbacks: Callbacks, user_id: int, language: str | None) -> None:
        self._callbacks, self._user_id, self._language = callbacks, user_id, language

    def folder(self, page: Page) -> Screen:
        """A page of a folder: a button for each of its entries, for the pages beside it, and for the folder above."""
        folder = page.folder
        title = self._say("root") if page.parent_id is None else words.fit(words.plain(folder.name), words.TEXT // 2)
        lines = [f"📁 {title}", *([] if page.entries else [self._say("empty")]), *([self._say("stale")] if page.stale else [])]
        rows = [[self._entry(entry)] for entry in page.entries]
        if page.pages > 1:
            rows.append(self._pages(folder.id, page.page, page.pages))
        if page.parent_id is not None:
            rows.append([self._button(self._say("up"), Browse(page.parent_id))])
        return Screen("\n".join(lines), _markup(rows))

    def file(self, file: Entry) -> Screen:
        """A file that may be ordered. Each drawing has a nonce of its own."""
        text = f"📄 {words.fit(words.plain(file.name), words.TEXT // 2)}\n{self._say('size', size=words.amount(file.size, self._language))}"
        return Screen(text, _markup([[self._button(self._say("download"), Download(file.id))], [self._back(file)]]))

    def card(self, shown: Shown, file: Entry | None) -> Screen:
        """How a delivery stands. While it waits it can be cancelled; when it has ended there is a way on, and unless it went well, to another try."""
        rows: list[list[InlineKeyboardButton]] = []
        if shown.state == "QUEUED":
            rows.append([self._button(self._say("cancel"), Cancel(shown.job_id))])
        if shown.state in FINAL:
            if file is not None and shown.state != "DELIVERED":
                rows.append([self._button(self._say("download"), Download(file.id))])
            rows.append([self._back(file)])
        return Screen(card_text(self._language, shown), _markup(rows))

    def request(self, user: User) -> Screen:
        """To an administrator: somebody asks for admission."""
        yes, no = Decide(user.id, "ACTIVE"), Decide(user.id, "BLOCKED")
        text = self._say("asks", name=words.fit(user.name, 200), id=user.id)
        return Screen(text, _markup([[self._button(self._say("allow"), yes), self._button(self._say("block"), no)]]))

    def _entry(self, entry: Entry) -> InlineKeyboardButton:
        label = f"{'📁' if entry.is_folder else '📄'} {words.plain(entry.name)}"
        return self._button(label, Browse(entry.id) if entry.is_folder else Look(entry.id))

    def _pages(self, folder_id: int, page: int, pages: int) -> list[InlineKeyboardButton]:
        row = [self._button(f"{page}/{pages}", Browse(folder_id, page))]
        if page > 1:
            row.insert(0, self._button("◀", Browse(folder_id, page - 1)))
        if page < pages:
            row.append(self._button("▶", Browse(folder_id, page + 1)))
        return row

    def _back(self, file: Entry | None) -> InlineKeyboardButton:
        return self._button(self._say("back"), Browse(None if file is None else file.parent_id))

    def _button(self, label: str, callback: Callback) -> InlineKeyboardButton:
        return InlineKeyboardButton(text=words.fit(label, words.LABEL), callback_data=self._callbacks.pack(callback, self._user_id))

    def _say(self, key: str, **values: object) -> str:
        return words.say(self._language, key, **values)


def card_text(language: str | None, shown: Shown) -> str:
    """A delivery's file, its state in plain words, and how far it is."""
    key, values = shown.state, dict[str, object]()
    if shown.state == "QUEUED" and shown.failed:
        why = words.say(language, words.reason(shown.error_code))
        key, values = "QUEUED_again", {"failed": shown.failed, "tries": shown.tries, "reason": why}
    elif shown.state == "QUEUED" and shown.attempt:
        # It was put off, or a worker that stopped gave it back, which costs no try.
        key = "QUEUED_back"
    elif shown.state == "DELIVERED" and shown.doubted:
        key = "DELIVERED_twice"
    elif shown.state == "FAILED":
        values = {"reason": words.failure(language, shown.error_code)}
    lines = [f"📄 {words.fit(words.plain(shown.file_name), words.TEXT // 2)}", words.say(language, key, **values)]
    if shown.state == "STREAMING" and shown.done is not None and shown.total:
        lines.append(bar(language, shown.done, shown.total))
    if shown.stopping:
        lines.append(words.say(language, "stopping"))
    if shown.doubted and shown.state in FINAL and shown.state != "DELIVERED":
        lines.append(words.say(language, "maybe"))
    return "\n".join(lines)


def bar(language: str | None, done: float, total: float) -> str:
    """A bar of ten characters, the percentage and both amounts. It is full only when all of it is done."""
    part = min(max(done / total, 0.0), 1.0)
    full = int(part * BAR)
    return f"{'█' * full}{'░' * (BAR - full)} {int(part * 100)} % · {words.amount(min(max(done, 0), total), language)} / {words.amount(total, language)}"


def _markup(rows: list[list[InlineKeyboardButton]]) -> InlineKeyboardMarkup | None:
    return InlineKeyboardMarkup(inline_keyboard=rows) if rows else None
