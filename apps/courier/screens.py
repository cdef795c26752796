"""Builds the messages of the bot: their text and their buttons."""

from dataclasses import dataclass

from aiogram.types import InlineKeyboardButton, InlineKeyboardMarkup

from . import formatting
from .callback_data import Browse, Callback, CallbackCodec, Cancel, Decide, Download, ViewFile
from .catalogue import Entry, Page
from .service_models import FINAL, DeliveryView, User

BAR_LENGTH = 10


@dataclass(frozen=True)
class Screen:
    """The text and the keyboard of a message."""

    text: str
    keyboard: InlineKeyboardMarkup | None = None


class ScreenBuilder:
    """Builds screens for one user, in their language. Only that user can use the buttons."""

    def __init__(self, callbacks: CallbackCodec, user_id: int, language: str | None) -> None:
        self._callbacks, self._user_id, self._language = callbacks, user_id, language

    def folder(self, page: Page) -> Screen:
        """Show a page of a folder, with buttons for its entries, the neighbouring pages and the parent folder."""
        folder = page.folder
        title = (
            self._render("root")
            if page.parent_id is None
            else formatting.truncate(formatting.plain_text(folder.name), formatting.MAX_TEXT // 2)
        )
        lines = [
            f"📁 {title}",
            *([] if page.entries else [self._render("empty")]),
            *([self._render("stale")] if page.stale else []),
        ]
        rows = [[self._entry(entry)] for entry in page.entries]
        if page.pages > 1:
            rows.append(self._pages(folder.id, page.page, page.pages))
        if page.parent_id is not None:
            rows.append([self._button(self._render("up"), Browse(page.parent_id))])
        return Screen("\n".join(lines), _markup(rows))

    def file(self, file: Entry) -> Screen:
        """Show a file that can be ordered. Each display has its own nonce."""
        size = self._render("size", size=formatting.format_size(file.size, self._language))
        text = f"📄 {formatting.truncate(formatting.plain_text(file.name), formatting.MAX_TEXT // 2)}\n{size}"
        return Screen(text, _markup([[self._button(self._render("download"), Download(file.id))], [self._back(file)]]))

    def card(self, delivery: DeliveryView, file: Entry | None) -> Screen:
        """Show a delivery. A queued one has a cancel button; an ended one leads back, and if it was not sent, to a new
        order."""
        rows: list[list[InlineKeyboardButton]] = []
        if delivery.state == "QUEUED":
            rows.append([self._button(self._render("cancel"), Cancel(delivery.job_id))])
        if delivery.state in FINAL:
            if file is not None and delivery.state != "DELIVERED":
                rows.append([self._button(self._render("download"), Download(file.id))])
            rows.append([self._back(file)])
        return Screen(card_text(self._language, delivery), _markup(rows))

    def admission_request(self, user: User) -> Screen:
        """Ask an administrator to decide about a request for access."""
        yes, no = Decide(user.id, "ACTIVE"), Decide(user.id, "BLOCKED")
        text = self._render("asks", name=formatting.truncate(user.name, 200), id=user.id)
        return Screen(
            text, _markup([[self._button(self._render("allow"), yes), self._button(self._render("block"), no)]])
        )

    def _entry(self, entry: Entry) -> InlineKeyboardButton:
        label = f"{'📁' if entry.is_folder else '📄'} {formatting.plain_text(entry.name)}"
        return self._button(label, Browse(entry.id) if entry.is_folder else ViewFile(entry.id))

    def _pages(self, folder_id: int, page: int, pages: int) -> list[InlineKeyboardButton]:
        row = [self._button(f"{page}/{pages}", Browse(folder_id, page))]
        if page > 1:
            row.insert(0, self._button("◀", Browse(folder_id, page - 1)))
        if page < pages:
            row.append(self._button("▶", Browse(folder_id, page + 1)))
        return row

    def _back(self, file: Entry | None) -> InlineKeyboardButton:
        return self._button(self._render("back"), Browse(None if file is None else file.parent_id))

    def _button(self, label: str, callback: Callback) -> InlineKeyboardButton:
        return InlineKeyboardButton(
            text=formatting.truncate(label, formatting.MAX_LABEL),
            callback_data=self._callbacks.pack(callback, self._user_id),
        )

    def _render(self, key: str, **values: object) -> str:
        return formatting.render(self._language, key, **values)


def card_text(language: str | None, delivery: DeliveryView) -> str:
    """Return the file name, the state and the progress of a delivery."""
    key, values = delivery.state, dict[str, object]()
    if delivery.state == "QUEUED" and delivery.failed:
        reason = formatting.render(language, formatting.failure_key(delivery.error_code))
        key, values = "QUEUED_again", {"failed": delivery.failed, "tries": delivery.tries, "reason": reason}
    elif delivery.state == "QUEUED" and delivery.attempt:
        # The delivery was postponed, or a stopping worker returned it. Neither costs a try.
        key = "QUEUED_back"
    elif delivery.state == "DELIVERED" and delivery.doubted:
        key = "DELIVERED_twice"
    elif delivery.state == "FAILED":
        values = {"reason": formatting.render_failure(language, delivery.error_code)}
    lines = [
        f"📄 {formatting.truncate(formatting.plain_text(delivery.file_name), formatting.MAX_TEXT // 2)}",
        formatting.render(language, key, **values),
    ]
    if delivery.state == "STREAMING" and delivery.done is not None and delivery.total:
        lines.append(progress_bar(language, delivery.done, delivery.total))
    if delivery.stopping:
        lines.append(formatting.render(language, "stopping"))
    if delivery.doubted and delivery.state in FINAL and delivery.state != "DELIVERED":
        lines.append(formatting.render(language, "maybe"))
    return "\n".join(lines)


def progress_bar(language: str | None, done: float, total: float) -> str:
    """Return a bar of ten characters, the percentage and both sizes. The bar is full only at 100 %."""
    fraction = min(max(done / total, 0.0), 1.0)
    full = int(fraction * BAR_LENGTH)
    sizes = [formatting.format_size(size, language) for size in (min(max(done, 0), total), total)]
    return f"{'█' * full}{'░' * (BAR_LENGTH - full)} {int(fraction * 100)} % · {' / '.join(sizes)}"


def _markup(rows: list[list[InlineKeyboardButton]]) -> InlineKeyboardMarkup | None:
    return InlineKeyboardMarkup(inline_keyboard=rows) if rows else None
