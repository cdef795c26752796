"""Formats downloads for people."""

from rich.filesize import decimal

from apps.common.formatting import format_time, plain_text

from .models import Download, Progress


def format_progress(progress: Progress | None) -> str:
    """The finished bytes, with total and percentage if they are known."""
    if progress is None:
        return ""
    if not progress.total:
        return decimal(progress.done)
    return f"{decimal(progress.done)} of {decimal(progress.total)}, {int(100 * progress.done / progress.total)} %"


def format_status(download: Download) -> str:
    """The status, and whether a cancel request is pending."""
    return f"{download.status}, being canceled" if download.being_canceled else download.status


def describe_download(download: Download) -> str:
    """The status, and while the download is active its progress and problems."""
    parts = [format_status(download)]
    if download.active:
        parts += filter(None, [format_progress(download.progress)])
        if download.progress is not None and download.progress.note:
            parts.append(f"qBittorrent: {download.progress.note}")
        if download.first_not_found_at_utc is not None:
            parts.append(f"not found in qBittorrent since {format_time(download.first_not_found_at_utc)}")
    return plain_text("; ".join(parts))
