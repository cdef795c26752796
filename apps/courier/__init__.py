"""Files from Yandex Disk to Telegram, each exactly accounted for."""
