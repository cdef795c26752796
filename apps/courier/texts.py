"""Every sentence that a person reads, in English and in Russian. They are plain text, never markup."""

import re
import unicodedata
from typing import Literal, get_args

from .errors import Code

Language = Literal["en", "ru"]
TEXT, ANSWER, LABEL = 4096, 200, 48
"""The longest text of a message and of an answer to a press, by Telegram's rules; and the longest label that a telephone shows whole."""
LOST = "lease lost"
"""The engine's own word for a delivery whose worker went silent."""

EN = {
    # people
    "closed": "This library is for its readers only. Send /start to ask for admission; an administrator decides.",
    "pending": "Your request has been passed on to the administrators. You will hear here when it is decided.",
    "waiting_people": "People who wait for a decision: {count}. /users shows them.",
    "is_admin": "This is an administrator, who cannot be kept out from here: take the id out of COURIER_ADMINS, start the courier again, and then repeat this.",
    "menu_start": "Open the library",
    "menu_help": "What this bot can do",
    "welcome": "You may use the library now. Send /start to open it.",
    "asks": "{name} (id {id}) asks for admission.",
    "allow": "✅ Allow",
    "block": "⛔ Block",
    "decided": "{name} (id {id}): {status}.",
    "stands": "A later decision stands: {status}. To change it, send /allow {id} or /block {id}.",
    "no_user": "Nobody with the id {id} has asked. /users shows who has.",
    "usage": "Send /{command} with the person's id after it, a number, as in: /{command} 123456789. /users shows the ids.",
    "users": "People: {count}",
    "user_line": "{id} · {status} · {name}",
    "more": "… and {count} more",
    "PENDING": "waits for a decision",
    "ACTIVE": "allowed",
    "BLOCKED": "blocked",
    "help": "/start opens the library. Choose a file and press “Download”: it is sent to you here, and its message shows how far it is.",
    "help_admin": "For administrators:\n/users – who has asked, and who is allowed\n"
    "/allow ID – let a person in\n/block ID – keep a person out\n/status – how deliveries stand",
    # the library
    "root": "Library",
    "empty": "There is nothing here.",
    "stale": "The disk does not answer at the moment. This is the list as it was last.",
    "gone": "It is no longer there. Send /start to open the library.",
    "outdated": "This button is no longer of use. Send /start to open the library.",
    "disk_trouble": "The disk does not answer at the moment. Try again in a minute.",
    "looking": "The disk is slow, and is still being asked. Try again in a moment.",
    "disk_refused": "The disk refuses to show this at the moment. The administrators can find out why.",
    "wrong": "Something went wrong. Try again, please.",
    "up": "⬆ Up",
    "back": "⬆ Back to the folder",
    "download": "⬇ Download",
    "cancel": "✖ Cancel",
    "size": "Size: {size}",
    # a delivery
    "ordered": "It is in the queue.",
    "already": "Already ordered.",
    "cancelled": "Cancelled.",
    "already_ended": "It has ended already.",
    "on_its_way": "It is already on its way.",
    "stopping": "It is being stopped, if that is still possible.",
    "maybe": "It may have arrived all the same.",
    "QUEUED": "⏳ In the queue.",
    "QUEUED_again": "⏳ Tries that did not work out: {failed} of {tries}. {reason} It will be tried again.",
    "QUEUED_back": "⏳ It waits for its next try.",
    "CLAIMED": "⏳ A worker has taken it.",
    "DOWNLOADING": "⏬ It is being fetched from the disk.",
    "STREAMING": "⏫ It is being sent.",
    "DELIVERED": "✅ Sent.",
    "DELIVERED_twice": "✅ Sent. Nobody knows whether an earlier try had arrived, so it may have come twice.",
    "FAILED": "❌ It could not be sent. {reason}",
    "CANCELLED": "✖ Cancelled.",
    "EXPIRED": "⌛ It waited for too long and was given up.",
    "failed": "{name} could not be sent. {reason}",
    "expired": "{name} waited for too long and was given up. You may order it again.",
    "failed_maybe": "{name} could not be sent. {reason} It may have arrived all the same: look before you order it again.",
    "expired_maybe": "{name} waited for too long and was given up. It may have arrived all the same: look before you order it again.",
    "cancelled_maybe": "{name} was cancelled. It may have arrived all the same: look before you order it again.",
    "doubt": "The connection broke while {name} was being sent, and nobody knows whether it arrived. It is sent again now, so it may come twice.",
    "alert_token": "Yandex Disk refuses the token, and nothing can be delivered. Write new COURIER_YANDEX_… settings, and start the courier again.",
    # why it could not be sent
    "why_forbidden": "The disk does not let us have this file.",
    "why_not_found": "The file is no longer on the disk.",
    "why_too_big": "The file is larger than Telegram takes.",
    "why_empty": "The file is empty, and Telegram takes no empty files.",
    "why_shut_out": "The library cannot reach its disk. The administrators have been told.",
    "why_bot_refused": "Telegram refuses the library’s bot. An administrator has to see to it.",
    "why_blocked": "You have blocked the bot.",
    "why_unreachable": "Telegram does not find this chat.",
    "why_inactive": "You are not allowed to use the library.",
    "why_stale_file": "Telegram has lost its copy of the file. Order it again, please.",
    "why_refused": "The request was refused, and would be again.",
    "why_lost": "The worker that was at it stopped.",
    "why_trouble": "The disk or Telegram did not answer as it should.",
    "why_unknown": "Something went wrong in the courier itself.",
    "later": "You may order it again later.",
    # /status
    "status": "Deliveries",
    "none": "none",
    "depth": "Waiting: {waiting}, under way: {running}",
    "oldest": "The longest wait: {age}",
    "stuck": "Stuck: {count}",
    "stuck_line": "{state}, silent for {age}",
    "workers": "Workers: {count}",
    "no_worker": "No worker runs, so nothing is delivered. Start one.",
    "worker_line": "{name}: last seen {age} ago",
    "worker_gone": "{name}: gone, last seen {age} ago",
    "token_expiry": "Token of the disk: valid until {at}",
    "token_unknown": "Token of the disk: how long it is valid is not known",
    "doubted": "Deliveries in doubt: {count}",
    "errors": "Last errors",
    "error_line": "{at} {code} {sentence}",
}

RU = {
    "closed": "Эта библиотека только для своих читателей. Отправьте /start, чтобы попросить доступ; решает администратор.",
    "pending": "Ваша просьба передана администраторам. Ответ придёт сюда.",
    "waiting_people": "Людей, которые ждут решения: {count}. Список: /users.",
    "is_admin": "Это администратор, отсюда ему доступ не закрыть: уберите его id из COURIER_ADMINS, запустите курьера заново и повторите.",
    "menu_start": "Открыть библиотеку",
    "menu_help": "Что умеет этот бот",
    "welcome": "Вам открыт доступ к библиотеке. Отправьте /start, чтобы войти.",
    "asks": "{name} (id {id}) просит доступ.",
    "allow": "✅ Разрешить",
    "block": "⛔ Запретить",
    "decided": "{name} (id {id}): {status}.",
    "stands": "Действует более позднее решение: {status}. Чтобы изменить его, отправьте /allow {id} или /block {id}.",
    "no_user": "Человек с id {id} доступа не просил. Список: /users.",
    "usage": "Отправьте /{command} и после него id человека, число, например: /{command} 123456789. Список: /users.",
    "users": "Людей: {count}",
    "user_line": "{id} · {status} · {name}",
    "more": "… и ещё {count}",
    "PENDING": "ждёт решения",
    "ACTIVE": "доступ открыт",
    "BLOCKED": "доступ закрыт",
    "help": "/start открывает библиотеку. Выберите файл и нажмите «Скачать»: он придёт сюда, а сообщение покажет, как идут дела.",
    "help_admin": "Для администраторов:\n/users – кто просил доступ и у кого он есть\n"
    "/allow ID – открыть доступ\n/block ID – закрыть доступ\n/status – как идут доставки",
    "root": "Библиотека",
    "empty": "Здесь пусто.",
    "stale": "Диск сейчас не отвечает. Это список, каким он был в последний раз.",
    "gone": "Этого больше нет. Отправьте /start, чтобы открыть библиотеку.",
    "outdated": "Эта кнопка больше не действует. Отправьте /start, чтобы открыть библиотеку.",
    "disk_trouble": "Диск сейчас не отвечает. Попробуйте через минуту.",
    "looking": "Диск отвечает медленно, ответа ещё нет. Попробуйте снова чуть позже.",
    "disk_refused": "Диск сейчас отказывается это показать. Причину могут узнать администраторы.",
    "wrong": "Что-то пошло не так. Попробуйте ещё раз, пожалуйста.",
    "up": "⬆ Выше",
    "back": "⬆ Назад в папку",
    "download": "⬇ Скачать",
    "cancel": "✖ Отменить",
    "size": "Размер: {size}",
    "ordered": "Файл в очереди.",
    "already": "Уже заказано.",
    "cancelled": "Отменено.",
    "already_ended": "Доставка уже окончена.",
    "on_its_way": "Файл уже в пути.",
    "stopping": "Доставка останавливается, если это ещё возможно.",
    "maybe": "Возможно, файл всё-таки пришёл.",
    "QUEUED": "⏳ В очереди.",
    "QUEUED_again": "⏳ Неудачных попыток: {failed} из {tries}. {reason} Будет ещё одна попытка.",
    "QUEUED_back": "⏳ Ждёт следующей попытки.",
    "CLAIMED": "⏳ Взято в работу.",
    "DOWNLOADING": "⏬ Файл берётся с диска.",
    "STREAMING": "⏫ Файл отправляется.",
    "DELIVERED": "✅ Отправлено.",
    "DELIVERED_twice": "✅ Отправлено. Неизвестно, дошла ли прежняя попытка, поэтому файл мог прийти дважды.",
    "FAILED": "❌ Не удалось отправить. {reason}",
    "CANCELLED": "✖ Отменено.",
    "EXPIRED": "⌛ Файл слишком долго ждал очереди, доставка прекращена.",
    "failed": "Не удалось отправить: {name}. {reason}",
    "expired": "Слишком долго ждал очереди, доставка прекращена: {name}. Его можно заказать снова.",
    "failed_maybe": "Не удалось отправить: {name}. {reason} Возможно, файл всё-таки пришёл: проверьте, прежде чем заказывать снова.",
    "expired_maybe": "Слишком долго ждал очереди, доставка прекращена: {name}. Возможно, файл всё-таки пришёл: проверьте, прежде чем заказывать снова.",
    "cancelled_maybe": "Доставка отменена: {name}. Возможно, файл всё-таки пришёл: проверьте, прежде чем заказывать снова.",
    "doubt": "Связь прервалась во время отправки, и неизвестно, дошёл ли файл {name}. Сейчас он отправляется снова, поэтому может прийти дважды.",
    "alert_token": "Яндекс Диск не принимает токен, и доставка невозможна. Задайте новый в настройках COURIER_YANDEX_… и запустите курьера заново.",
    "why_forbidden": "Диск не даёт доступа к этому файлу.",
    "why_not_found": "Файла больше нет на диске.",
    "why_too_big": "Файл больше, чем принимает Telegram.",
    "why_empty": "Файл пуст, а пустые файлы Telegram не принимает.",
    "why_shut_out": "Библиотеке закрыт доступ к её диску. Администраторам об этом сообщено.",
    "why_bot_refused": "Telegram не принимает бота библиотеки. Этим должен заняться администратор.",
    "why_blocked": "Вы заблокировали бота.",
    "why_unreachable": "Telegram не находит этот чат.",
    "why_inactive": "У вас нет доступа к библиотеке.",
    "why_stale_file": "Telegram потерял свою копию файла. Закажите его ещё раз, пожалуйста.",
    "why_refused": "Запрос отклонён, и повторять его бесполезно.",
    "why_lost": "Программа, которая его отправляла, остановилась.",
    "why_trouble": "Диск или Telegram не ответил как следует.",
    "why_unknown": "Что-то пошло не так в самой программе.",
    "later": "Его можно заказать снова позже.",
    "status": "Доставки",
    "none": "нет",
    "depth": "Ждут: {waiting}, в работе: {running}",
    "oldest": "Дольше всего ждут: {age}",
    "stuck": "Зависли: {count}",
    "stuck_line": "{state}, молчит {age}",
    "workers": "Исполнители: {count}",
    "no_worker": "Ни один исполнитель не работает, и ничего не доставляется. Запустите хотя бы одного.",
    "worker_line": "{name}: на связи {age} назад",
    "worker_gone": "{name}: пропал, на связи {age} назад",
    "token_expiry": "Токен диска действует до {at}",
    "token_unknown": "Токен диска: срок действия неизвестен",
    "doubted": "Доставки, о которых неизвестно, дошли ли они: {count}",
    "errors": "Последние ошибки",
    "error_line": "{at} {code} {sentence}",
}

TEXTS: dict[Language, dict[str, str]] = {"en": EN, "ru": RU}
_UNSEEN = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff")
"""Marks of direction and of byte order."""
_CODE = re.compile(rf"({'|'.join((*get_args(Code), 'trouble', LOST))})(?::|$)")


def language(code: str | None) -> Language:
    """The language for a client with this code: Russian for Russian, English for any other."""
    return "ru" if (code or "").lower().partition("-")[0] == "ru" else "en"


def say(spoken: str | None, key: str, **values: object) -> str:
    """The sentence of this key in this language, with these values, cut to what a message may hold."""
    # Names come from strangers, so they are values and never part of what is formatted.
    return fit(TEXTS[language(spoken)][key].format(**{name: plain(value) if isinstance(value, str) else value for name, value in values.items()}), TEXT)


def failure(spoken: str | None, last_error: str | None) -> str:
    """Why a delivery failed, in plain words, by the code at the beginning of its error."""
    key = reason(last_error)
    again = f" {say(spoken, 'later')}" if key in ("why_trouble", "why_lost", "why_unknown") else ""
    return say(spoken, key) + again


def reason(last_error: str | None) -> str:
    """The key of the words for this error."""
    code = _CODE.match(last_error or "")
    return "why_unknown" if code is None else f"why_{'lost' if code[1] == LOST else code[1]}"


# ---------------------------------------------------------------- fitting
def plain(text: str) -> str:
    """A stranger's text on one line: no control characters, no marks that turn the direction of what follows, nothing that cannot be sent."""
    sendable = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return " ".join("".join(("" if each in _UNSEEN else " ") if steers(each) else each for each in sendable).split())


def steers(character: str) -> bool:
    """Whether this has no look of its own and breaks a line, commands a terminal, or turns the direction of what follows. What joins letters does not."""
    return character in _UNSEEN or unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")


def units(text: str) -> int:
    """The length of a text as Telegram counts it."""
    return len(text.encode("utf-16-le", "replace")) // 2


def fit(text: str, limit: int) -> str:
    """The text, cut to so many of the units that Telegram counts."""
    return text if units(text) <= limit else text.encode("utf-16-le", "replace")[: 2 * (limit - 1)].decode("utf-16-le", "ignore") + "…"


def amount(number: float, spoken: str | None) -> str:
    """So many bytes, as people say it."""
    units = ("B", "KB", "MB", "GB") if language(spoken) == "en" else ("Б", "КБ", "МБ", "ГБ")
    place = 0
    while number >= 1024 and place < len(units) - 1:
        number, place = number / 1024, place + 1
    text = f"{number:.1f}".removesuffix(".0") if place else f"{number:.0f}"
    return f"{text if language(spoken) == 'en' else text.replace('.', ',')} {units[place]}"


def span(seconds: float, spoken: str | None) -> str:
    """So long, as people say it."""
    second, minute, hour, day = ("s", "min", "h", "d") if language(spoken) == "en" else ("с", "мин", "ч", "д")
    for size, unit in ((86400, day), (3600, hour), (60, minute)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} {second}"
