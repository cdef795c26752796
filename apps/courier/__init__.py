"""A Telegram bot that delivers files from Yandex Disk."""
