"""How a download is told to a person."""

from rich.filesize import decimal

from apps.common.telling import moment, plain

from .library import Download, Progress


def how_far(progress: Progress | None) -> str:
    """How much of it is there; nothing while nobody knows."""
    if progress is None:
        return ""
    if not progress.total:
        return decimal(progress.done)
    return f"{decimal(progress.done)} of {decimal(progress.total)}, {int(100 * progress.done / progress.total)} %"


def status(download: Download) -> str:
    """A download's status, and whether it is about to be another."""
    return f"{download.status}, being canceled" if download.being_canceled else download.status


def how_it_stands(download: Download) -> str:
    """A download's status, and while it is active what is known besides."""
    told = [status(download)]
    if download.active:
        told += filter(None, [how_far(download.progress)])
        if download.progress is not None and download.progress.note:
            told.append(f"qBittorrent says {download.progress.note}")
        if download.first_not_found_at_utc is not None:
            told.append(f"not found in qBittorrent since {moment(download.first_not_found_at_utc)}")
    return plain("; ".join(told))
