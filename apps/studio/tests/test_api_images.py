"""Promises about the pictures over HTTP: a signed link shows exactly what was stored, for a while, and no other address shows anything."""

import hashlib
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import pytest

from apps.studio.api import api
from apps.studio.errors import Trouble
from apps.studio.originals import Originals
from apps.studio.signing import GRID, LIFE, Signer
from apps.studio.tests.clients import NO_ID, Http, Somebody, refused
from apps.studio.tests.images_api import png
from apps.studio.tests.kit import Atelier


@pytest.fixture
def ann(atelier: Atelier) -> Somebody:
    return Somebody(atelier, "ann")


@pytest.fixture
def stranger(atelier: Atelier) -> Http:
    """Somebody without a key."""
    return Http(api(atelier.studio, now=atelier.clock.now))


def drawn(atelier: Atelier, somebody: Somebody, prompt: str = "a hill") -> tuple[str, str]:
    """A finished picture: its job, and a link to it."""
    id = somebody.create(prompt).json()["id"]
    atelier.run()
    return id, somebody.get(f"/jobs/{id}").json()["resultUrl"]


def test_a_link_shows_the_picture_byte_for_byte(atelier: Atelier, ann: Somebody, stranger: Http) -> None:
    """Whoever has it: the link is the right."""
    id, link = drawn(atelier, ann)
    answer = stranger.get(link)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/png")
    assert answer.content == png("1024x1024") == (atelier.directory / "originals" / id).read_bytes()
    (asset,) = ann.get("/assets").json()["assets"]
    assert (asset["url"], asset["bytes"], asset["contentType"], asset["width"], asset["height"]) == (link, len(answer.content), "image/png", 1024, 1024)


def test_a_picture_is_taken_for_nothing_else(atelier: Atelier, ann: Somebody, stranger: Http) -> None:
    id, link = drawn(atelier, ann)
    headers = stranger.get(link).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in headers["content-security-policy"]
    assert "default-src 'none'" in headers["content-security-policy"]
    atelier.write("UPDATE studio_assets SET content_type = 'text/html' WHERE job_id = :id", id=id)
    assert stranger.get(link).headers["content-type"] == "application/octet-stream"


def test_a_link_expires(atelier: Atelier, ann: Somebody, stranger: Http) -> None:
    id, link = drawn(atelier, ann)
    left = int(parse_qs(urlsplit(link).query)["expires"][0]) - atelier.clock.now().timestamp()
    assert LIFE <= left < LIFE + GRID
    assert stranger.get(link).headers["cache-control"] == f"private, max-age={int(left)}"
    atelier.clock.advance(left - 1)
    assert stranger.get(link).headers["cache-control"] == "private, max-age=1"
    atelier.clock.advance(1)
    refused(stranger.get(link), 403, "link_expired", "expired")
    refused(ann.get(link), 403, "link_expired")
    again = ann.get(f"/jobs/{id}").json()["resultUrl"]
    assert again != link
    assert stranger.get(again).status_code == 200


def test_a_forged_link_is_no_address(atelier: Atelier, ann: Somebody) -> None:
    """Not even to its own user, and with the same answer as for a picture that does not exist."""
    id, link = drawn(atelier, ann)
    other, others = drawn(atelier, Somebody(atelier, "bob"))
    query = parse_qs(urlsplit(link).query)
    expires, signature = query["expires"][0], query["signature"][0]
    forged = Signer(b"another secret").signed(id, atelier.clock.now())
    none = refused(ann.get(f"/images/{NO_ID}?expires={expires}&signature={signature}"), 404, "not_found")
    wrong = [
        "", f"expires={expires}", f"signature={signature}", f"expires={int(expires) + 900}&signature={signature}", "expires=&signature=",
        f"expires={expires}&signature={signature[:-1]}", f"expires={expires}&signature=%C3%A9%00", f"expires=x&signature={signature}",
        f"expires={'9' * 5000}&signature={signature}", urlsplit(others).query,
    ]
    crossed = [f"/images/{other}?{urlsplit(link).query}", f"/images/%00?{urlsplit(link).query}", forged]
    for address in (*(f"/images/{id}?{query}" for query in wrong), *crossed):
        assert refused(ann.get(address), 404, "not_found") == none


def test_a_signed_link_to_no_picture_is_no_address(atelier: Atelier, ann: Somebody) -> None:
    id = ann.create().json()["id"]
    for each in (id, NO_ID, "nonsense"):
        refused(ann.get(atelier.gallery.signer.signed(each, atelier.clock.now())), 404, "not_found")


def test_another_user_is_shown_no_link(atelier: Atelier, ann: Somebody) -> None:
    id, link = drawn(atelier, ann)
    bob = Somebody(atelier, "bob")
    for path in (f"/jobs/{id}", "/jobs", "/assets", "/credits", "/session"):
        answer = bob.get(path)
        assert id not in answer.text.replace(f"no image {id}", "")
        assert urlsplit(link).query not in answer.text


def test_a_browser_that_has_it_is_sent_nothing(atelier: Atelier, ann: Somebody, stranger: Http) -> None:
    _, link = drawn(atelier, ann)
    first = stranger.get(link)
    tag = first.headers["etag"]
    assert tag == f'"{hashlib.sha256(first.content).hexdigest()}"'
    for given in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        answer = stranger.get(link, headers={"If-None-Match": given})
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", tag)
    assert stranger.get(link, headers={"If-None-Match": '"other"'}).content == first.content
    atelier.clock.advance(timedelta(hours=1))
    refused(stranger.get(link, headers={"If-None-Match": tag}), 403, "link_expired")


def test_head_tells_of_a_picture_without_it(atelier: Atelier, ann: Somebody, stranger: Http) -> None:
    _, link = drawn(atelier, ann)
    got, head = stranger.get(link), stranger.request("HEAD", link)
    assert (head.status_code, head.content) == (200, b"")
    assert {name: head.headers[name] for name in ("content-type", "content-length", "etag")} == {
        "content-type": "image/png", "content-length": str(len(got.content)), "etag": got.headers["etag"]}


def test_a_picture_that_is_gone_from_the_storage_is_not_found(atelier: Atelier, ann: Somebody, stranger: Http, caplog: pytest.LogCaptureFixture) -> None:
    id, link = drawn(atelier, ann)
    (atelier.directory / "originals" / id).unlink()
    assert "originals" not in refused(stranger.get(link), 404, "not_found")
    assert id in caplog.text


def test_a_storage_that_is_away_is_told_so(atelier: Atelier, ann: Somebody, stranger: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    _, link = drawn(atelier, ann)

    async def away(*_: object) -> bytes:
        raise Trouble("The bucket of secret is away.")

    monkeypatch.setattr(Originals, "read", away)
    assert "secret" not in refused(stranger.get(link), 503, "storage_unavailable", "try again")
