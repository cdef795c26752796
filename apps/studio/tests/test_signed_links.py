"""Signed links: valid for one image and a limited time, and impossible to forge."""

from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.studio.signed_links import GRID, LIFETIME, ExpiredLink, InvalidLink, Signer

NOW = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)
SIGNER = Signer(bytes(32))
JOB = "0190a6f0-0000-7000-8000-000000000001"
OTHER = "0190a6f0-0000-7000-8000-000000000002"


def parts(link: str) -> tuple[str, str, str]:
    """The job, expiry and signature of a link, as a browser sends them."""
    split = urlsplit(link)
    query = parse_qs(split.query, strict_parsing=True)
    return split.path.removeprefix("/images/"), query["expires"][0], query["signature"][0]


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def test_link_is_valid_for_its_lifetime() -> None:
    link = parts(SIGNER.sign(JOB, NOW))
    assert link[0] == JOB
    SIGNER.check(*link, NOW)
    SIGNER.check(*link, after(LIFETIME - 1))


@given(st.floats(0, 10 * GRID))
def test_link_expires_after_its_lifetime_on_the_grid(offset: float) -> None:
    made = after(offset)
    link = parts(SIGNER.sign(JOB, made))
    SIGNER.check(*link, made + timedelta(seconds=LIFETIME - 1))
    with pytest.raises(ExpiredLink):
        SIGNER.check(*link, made + timedelta(seconds=LIFETIME + GRID))


def test_link_expires_in_the_named_second() -> None:
    job, expires, signature = parts(SIGNER.sign(JOB, NOW))
    end = datetime.fromtimestamp(int(expires), UTC)
    SIGNER.check(job, expires, signature, end - timedelta(microseconds=1))
    with pytest.raises(ExpiredLink):
        SIGNER.check(job, expires, signature, end)


def test_image_keeps_its_address_for_minutes() -> None:
    """A reloaded page therefore does not load the image again."""
    start = datetime.fromtimestamp(NOW.timestamp() // GRID * GRID + 1, UTC)
    links = {SIGNER.sign(JOB, start + timedelta(seconds=second)) for second in range(0, GRID, 10)}
    assert len(links) == 1
    assert SIGNER.sign(JOB, start + timedelta(seconds=GRID)) not in links


def test_signature_is_valid_for_one_job() -> None:
    _, expires, signature = parts(SIGNER.sign(JOB, NOW))
    with pytest.raises(InvalidLink):
        SIGNER.check(OTHER, expires, signature, NOW)


def test_signature_is_valid_for_one_expiry() -> None:
    job, expires, signature = parts(SIGNER.sign(JOB, NOW))
    for later in (str(int(expires) + GRID), f"{expires}0", f" {expires}", f"+{expires}", f"0{expires}"):
        with pytest.raises(InvalidLink):
            SIGNER.check(job, later, signature, NOW)


def test_signature_with_another_secret_is_invalid() -> None:
    with pytest.raises(InvalidLink):
        SIGNER.check(*parts(Signer(b"\1" * 32).sign(JOB, NOW)), NOW)


def test_boundary_between_job_and_expiry_cannot_be_moved() -> None:
    _, expires, signature = parts(SIGNER.sign(JOB, NOW))
    with pytest.raises(InvalidLink):
        SIGNER.check(JOB + expires[0], expires[1:], signature, NOW)


def test_forged_link_does_not_reveal_its_expiry() -> None:
    job, expires, signature = parts(SIGNER.sign(JOB, NOW))
    with pytest.raises(InvalidLink):
        SIGNER.check(job, expires, signature[:-1] + ("0" if signature[-1] != "0" else "1"), after(10 * LIFETIME))
    with pytest.raises(InvalidLink):
        SIGNER.check(job, "1", signature, NOW)


ANY = st.text(st.characters(exclude_categories=()))


@given(ANY, ANY, ANY)
def test_any_input_raises_only_invalid_link(job: str, expires: str, signature: str) -> None:
    """The input may be empty, not a number, not ASCII or not valid Unicode."""
    with pytest.raises(InvalidLink):
        SIGNER.check(job, expires, signature, NOW)
