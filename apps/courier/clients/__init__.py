"""Clients of the external systems: Yandex Disk and Telegram."""
