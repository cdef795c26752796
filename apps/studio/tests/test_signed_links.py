"""Signed links: good for their time, for one image, and made by nobody else."""

from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.studio.signing import GRID, LIFE, Expired, Forged, Signer

NOW = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)
SIGNER = Signer(bytes(32))
JOB = "0190a6f0-0000-7000-8000-000000000001"
OTHER = "0190a6f0-0000-7000-8000-000000000002"


def parts(link: str) -> tuple[str, str, str]:
    """Job, expiry and signature, as a browser would send them."""
    split = urlsplit(link)
    query = parse_qs(split.query, strict_parsing=True)
    return split.path.removeprefix("/images/"), query["expires"][0], query["signature"][0]


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def test_a_link_is_good_at_once_and_for_its_life() -> None:
    link = parts(SIGNER.signed(JOB, NOW))
    assert link[0] == JOB
    SIGNER.check(*link, NOW)
    SIGNER.check(*link, after(LIFE - 1))


@given(st.floats(0, 10 * GRID))
def test_a_link_expires_after_its_life_and_within_the_grid(offset: float) -> None:
    made = after(offset)
    link = parts(SIGNER.signed(JOB, made))
    SIGNER.check(*link, made + timedelta(seconds=LIFE - 1))
    with pytest.raises(Expired):
        SIGNER.check(*link, made + timedelta(seconds=LIFE + GRID))


def test_a_link_is_over_in_the_very_second_that_it_names() -> None:
    job, expires, signature = parts(SIGNER.signed(JOB, NOW))
    end = datetime.fromtimestamp(int(expires), UTC)
    SIGNER.check(job, expires, signature, end - timedelta(microseconds=1))
    with pytest.raises(Expired):
        SIGNER.check(job, expires, signature, end)


def test_one_image_has_one_address_for_minutes() -> None:
    """So a page that is drawn again loads no image again."""
    start = datetime.fromtimestamp(NOW.timestamp() // GRID * GRID + 1, UTC)
    links = {SIGNER.signed(JOB, start + timedelta(seconds=second)) for second in range(0, GRID, 10)}
    assert len(links) == 1
    assert SIGNER.signed(JOB, start + timedelta(seconds=GRID)) not in links


def test_a_signature_is_for_one_job() -> None:
    _, expires, signature = parts(SIGNER.signed(JOB, NOW))
    with pytest.raises(Forged):
        SIGNER.check(OTHER, expires, signature, NOW)


def test_a_signature_is_for_one_moment() -> None:
    job, expires, signature = parts(SIGNER.signed(JOB, NOW))
    for later in (str(int(expires) + GRID), f"{expires}0", f" {expires}", f"+{expires}", f"0{expires}"):
        with pytest.raises(Forged):
            SIGNER.check(job, later, signature, NOW)


def test_another_secret_signs_nothing_here() -> None:
    with pytest.raises(Forged):
        SIGNER.check(*parts(Signer(b"\1" * 32).signed(JOB, NOW)), NOW)


def test_the_boundary_between_job_and_moment_cannot_be_moved() -> None:
    _, expires, signature = parts(SIGNER.signed(JOB, NOW))
    with pytest.raises(Forged):
        SIGNER.check(JOB + expires[0], expires[1:], signature, NOW)


def test_a_forged_link_does_not_say_whether_it_has_expired() -> None:
    job, expires, signature = parts(SIGNER.signed(JOB, NOW))
    with pytest.raises(Forged):
        SIGNER.check(job, expires, signature[:-1] + ("0" if signature[-1] != "0" else "1"), after(10 * LIFE))
    with pytest.raises(Forged):
        SIGNER.check(job, "1", signature, NOW)


ANY = st.text(st.characters(exclude_categories=()))


@given(ANY, ANY, ANY)
def test_whatever_is_sent_nothing_is_raised_but_forged(job: str, expires: str, signature: str) -> None:
    """Empty, not a number, not ASCII, not even Unicode."""
    with pytest.raises(Forged):
        SIGNER.check(job, expires, signature, NOW)
