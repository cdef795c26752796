"""Every text that the bot shows, in English and in Russian. All texts are plain, without markup."""

EN = {
    # users
    "closed": "This library is private. Send /start to request access; an administrator will decide.",
    "pending": "Your request has been sent to the administrators. You will be notified here when they decide.",
    "waiting_people": "People waiting for a decision: {count}. Send /users to see them.",
    "is_admin": (
        "This user is an administrator and cannot be blocked here. Remove the ID from COURIER_ADMINS, restart "
        "the courier, and try again."
    ),
    "menu_start": "Open the library",
    "menu_help": "What this bot can do",
    "welcome": "You now have access to the library. Send /start to open it.",
    "asks": "{name} (ID {id}) requests access.",
    "allow": "✅ Allow",
    "block": "⛔ Block",
    "decided": "{name} (ID {id}): {status}.",
    "replaced": "A later decision applies: {status}. To change it, send /allow {id} or /block {id}.",
    "no_user": "No one with the ID {id} has requested access. Send /users to see who has.",
    "usage": "Send /{command} followed by the person's ID, for example: /{command} 123456789. /users lists the IDs.",
    "users": "Users: {count}",
    "user_line": "{id} · {status} · {name}",
    "more": "… and {count} more",
    "PENDING": "waiting for a decision",
    "ACTIVE": "allowed",
    "BLOCKED": "blocked",
    "help": (
        "Send /start to open the library. Choose a file and press “Download”: the file is sent to you here, and "
        "its message shows the progress."
    ),
    "help_admin": (
        "For administrators:\n/users – list users and requests\n/allow ID – allow a person\n"
        "/block ID – block a person\n/status – show the state of deliveries"
    ),
    # the library
    "root": "Library",
    "empty": "This folder is empty.",
    "stale": "The disk is not responding. This list may be out of date.",
    "gone": "This is no longer available. Send /start to open the library.",
    "outdated": "This button no longer works. Send /start to open the library.",
    "disk_unreachable": "The disk is not responding. Try again in a minute.",
    "looking": "The disk is slow to respond. Try again in a moment.",
    "disk_refused": "The disk cannot show this right now. Ask an administrator.",
    "wrong": "Something went wrong. Please try again.",
    "up": "⬆ Up",
    "back": "⬆ Back to the folder",
    "download": "⬇ Download",
    "cancel": "✖ Cancel",
    "size": "Size: {size}",
    # a delivery
    "ordered": "Added to the queue.",
    "already": "Already ordered.",
    "cancelled": "Cancelled.",
    "already_ended": "This delivery has already ended.",
    "on_its_way": "The file is already being sent.",
    "stopping": "Stopping, if it is not too late.",
    "maybe": "The file may have arrived anyway.",
    "QUEUED": "⏳ Queued.",
    "QUEUED_again": "⏳ Failed attempts: {failed} of {tries}. {reason} The courier will try again.",
    "QUEUED_back": "⏳ Waiting for the next attempt.",
    "CLAIMED": "⏳ Starting.",
    "DOWNLOADING": "⏬ Downloading from the disk.",
    "STREAMING": "⏫ Sending.",
    "DELIVERED": "✅ Sent.",
    "DELIVERED_twice": "✅ Sent. An earlier attempt may have arrived too, so you may have the file twice.",
    "FAILED": "❌ Not sent. {reason}",
    "CANCELLED": "✖ Cancelled.",
    "EXPIRED": "⌛ Expired: it waited too long.",
    "failed": "{name} could not be sent. {reason}",
    "expired": "{name} waited too long and expired. You can order it again.",
    "failed_maybe": "{name} could not be sent. {reason} It may have arrived anyway: check before you order it again.",
    "expired_maybe": (
        "{name} waited too long and expired. It may have arrived anyway: check before you order it again."
    ),
    "cancelled_maybe": "{name} was cancelled. It may have arrived anyway: check before you order it again.",
    "doubt": (
        "The connection broke while {name} was being sent, so we do not know whether it arrived. We are sending "
        "it again; you may receive it twice."
    ),
    "alert_token": (
        "Yandex Disk rejects the access token, so nothing can be delivered. Update the COURIER_YANDEX_… settings "
        "and restart the courier."
    ),
    # why a file could not be sent
    "why_forbidden": "The disk denies access to this file.",
    "why_not_found": "The file is no longer on the disk.",
    "why_too_big": "The file is too large for Telegram.",
    "why_empty": "The file is empty, and Telegram does not accept empty files.",
    "why_disk_token_rejected": "The library has lost access to its disk. The administrators have been notified.",
    "why_bot_token_rejected": "Telegram rejects the library’s bot. An administrator has to fix this.",
    "why_blocked": "You have blocked the bot.",
    "why_unreachable": "Telegram cannot find this chat.",
    "why_inactive": "You do not have access to the library.",
    "why_stale_file": "Telegram has lost its copy of the file. Please order it again.",
    "why_refused": "The request was rejected.",
    "why_lost": "The worker that was sending it stopped.",
    "why_temporary": "The disk or Telegram did not respond as expected.",
    "why_unknown": "An internal error occurred in the courier.",
    "later": "You can order it again later.",
    # /status
    "status": "Deliveries",
    "none": "none",
    "depth": "Waiting: {waiting}, running: {running}",
    "oldest": "Longest wait: {age}",
    "stuck": "Stuck: {count}",
    "stuck_line": "{state}, no heartbeat for {age}",
    "workers": "Workers: {count}",
    "no_worker": "No worker is running, so nothing is delivered. Start one.",
    "worker_line": "{name}: last seen {age} ago",
    "worker_gone": "{name}: not responding, last seen {age} ago",
    "token_expiry": "Disk token: valid until {at}",
    "token_unknown": "Disk token: expiry unknown",
    "doubted": "Deliveries in doubt: {count}",
    "errors": "Last errors",
    "error_line": "{at} {code} {sentence}",
}

RU = {
    # users
    "closed": (
        "Эта библиотека только для своих читателей. Отправьте /start, чтобы попросить доступ; решает администратор."
    ),
    "pending": "Ваша просьба передана администраторам. Ответ придёт сюда.",
    "waiting_people": "Людей, которые ждут решения: {count}. Список: /users.",
    "is_admin": (
        "Это администратор, отсюда ему доступ не закрыть: уберите его ID из COURIER_ADMINS, запустите курьера "
        "заново и повторите."
    ),
    "menu_start": "Открыть библиотеку",
    "menu_help": "Что умеет этот бот",
    "welcome": "Вам открыт доступ к библиотеке. Отправьте /start, чтобы войти.",
    "asks": "{name} (ID {id}) просит доступ.",
    "allow": "✅ Разрешить",
    "block": "⛔ Запретить",
    "decided": "{name} (ID {id}): {status}.",
    "replaced": "Действует более позднее решение: {status}. Чтобы изменить его, отправьте /allow {id} или /block {id}.",
    "no_user": "Человек с ID {id} доступа не просил. Список: /users.",
    "usage": "Отправьте /{command} и после него ID человека, число, например: /{command} 123456789. Список: /users.",
    "users": "Людей: {count}",
    "user_line": "{id} · {status} · {name}",
    "more": "… и ещё {count}",
    "PENDING": "ждёт решения",
    "ACTIVE": "доступ открыт",
    "BLOCKED": "доступ закрыт",
    "help": (
        "/start открывает библиотеку. Выберите файл и нажмите «Скачать»: он придёт сюда, а сообщение покажет, "
        "как идут дела."
    ),
    "help_admin": (
        "Для администраторов:\n/users – кто просил доступ и у кого он есть\n/allow ID – открыть доступ\n"
        "/block ID – закрыть доступ\n/status – как идут доставки"
    ),
    # the library
    "root": "Библиотека",
    "empty": "Здесь пусто.",
    "stale": "Диск сейчас не отвечает. Это список, каким он был в последний раз.",
    "gone": "Этого больше нет. Отправьте /start, чтобы открыть библиотеку.",
    "outdated": "Эта кнопка больше не действует. Отправьте /start, чтобы открыть библиотеку.",
    "disk_unreachable": "Диск сейчас не отвечает. Попробуйте через минуту.",
    "looking": "Диск отвечает медленно, ответа ещё нет. Попробуйте снова чуть позже.",
    "disk_refused": "Диск сейчас отказывается это показать. Причину могут узнать администраторы.",
    "wrong": "Что-то пошло не так. Попробуйте ещё раз, пожалуйста.",
    "up": "⬆ Выше",
    "back": "⬆ Назад в папку",
    "download": "⬇ Скачать",
    "cancel": "✖ Отменить",
    "size": "Размер: {size}",
    # a delivery
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
    "failed_maybe": (
        "Не удалось отправить: {name}. {reason} Возможно, файл всё-таки пришёл: проверьте, прежде чем заказывать снова."
    ),
    "expired_maybe": (
        "Слишком долго ждал очереди, доставка прекращена: {name}. Возможно, файл всё-таки пришёл: проверьте, "
        "прежде чем заказывать снова."
    ),
    "cancelled_maybe": (
        "Доставка отменена: {name}. Возможно, файл всё-таки пришёл: проверьте, прежде чем заказывать снова."
    ),
    "doubt": (
        "Связь прервалась во время отправки, и неизвестно, дошёл ли файл {name}. Сейчас он отправляется снова, "
        "поэтому может прийти дважды."
    ),
    "alert_token": (
        "Яндекс Диск не принимает токен, и доставка невозможна. Задайте новый в настройках COURIER_YANDEX_… и "
        "запустите курьера заново."
    ),
    # why a file could not be sent
    "why_forbidden": "Диск не даёт доступа к этому файлу.",
    "why_not_found": "Файла больше нет на диске.",
    "why_too_big": "Файл больше, чем принимает Telegram.",
    "why_empty": "Файл пуст, а пустые файлы Telegram не принимает.",
    "why_disk_token_rejected": "Библиотеке закрыт доступ к её диску. Администраторам об этом сообщено.",
    "why_bot_token_rejected": "Telegram не принимает бота библиотеки. Этим должен заняться администратор.",
    "why_blocked": "Вы заблокировали бота.",
    "why_unreachable": "Telegram не находит этот чат.",
    "why_inactive": "У вас нет доступа к библиотеке.",
    "why_stale_file": "Telegram потерял свою копию файла. Закажите его ещё раз, пожалуйста.",
    "why_refused": "Запрос отклонён, и повторять его бесполезно.",
    "why_lost": "Программа, которая его отправляла, остановилась.",
    "why_temporary": "Диск или Telegram не ответил как следует.",
    "why_unknown": "Что-то пошло не так в самой программе.",
    "later": "Его можно заказать снова позже.",
    # /status
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
