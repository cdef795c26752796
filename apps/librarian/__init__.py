"""A library of books whose downloads follow qBittorrent."""
