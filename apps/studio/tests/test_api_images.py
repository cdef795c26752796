"""Images over HTTP: a signed link returns exactly the stored image until it expires."""

import hashlib
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import pytest

from apps.studio.api import api
from apps.studio.clients.originals import Originals
from apps.studio.errors import TemporaryError
from apps.studio.signed_links import GRID, LIFETIME, Signer
from apps.studio.tests.fake_images_api import png
from apps.studio.tests.http_clients import NO_ID, ApiUser, HttpClient, refused
from apps.studio.tests.studio_kit import StudioKit


@pytest.fixture
def ann(kit: StudioKit) -> ApiUser:
    return ApiUser(kit, "ann")


@pytest.fixture
def stranger(kit: StudioKit) -> HttpClient:
    """A client without an access key."""
    return HttpClient(api(kit.studio, now=kit.clock.now))


def drawn(kit: StudioKit, somebody: ApiUser, prompt: str = "a hill") -> tuple[str, str]:
    """A completed job and the link to its picture."""
    id = somebody.create(prompt).json()["id"]
    kit.run()
    return id, somebody.get(f"/jobs/{id}").json()["resultUrl"]


def test_link_returns_the_stored_bytes(kit: StudioKit, ann: ApiUser, stranger: HttpClient) -> None:
    """It needs no access key."""
    id, link = drawn(kit, ann)
    answer = stranger.get(link)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/png")
    assert answer.content == png("1024x1024") == (kit.directory / "originals" / id).read_bytes()
    (asset,) = ann.get("/assets").json()["assets"]
    assert (asset["url"], asset["bytes"], asset["contentType"], asset["width"], asset["height"]) == (
        link,
        len(answer.content),
        "image/png",
        1024,
        1024,
    )


def test_browsers_treat_the_response_only_as_an_image(kit: StudioKit, ann: ApiUser, stranger: HttpClient) -> None:
    id, link = drawn(kit, ann)
    headers = stranger.get(link).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in headers["content-security-policy"]
    assert "default-src 'none'" in headers["content-security-policy"]
    kit.write("UPDATE studio_assets SET content_type = 'text/html' WHERE job_id = :id", id=id)
    assert stranger.get(link).headers["content-type"] == "application/octet-stream"


def test_link_expires(kit: StudioKit, ann: ApiUser, stranger: HttpClient) -> None:
    id, link = drawn(kit, ann)
    left = int(parse_qs(urlsplit(link).query)["expires"][0]) - kit.clock.now().timestamp()
    assert LIFETIME <= left < LIFETIME + GRID
    assert stranger.get(link).headers["cache-control"] == f"private, max-age={int(left)}"
    kit.clock.advance(left - 1)
    assert stranger.get(link).headers["cache-control"] == "private, max-age=1"
    kit.clock.advance(1)
    refused(stranger.get(link), 403, "link_expired", "expired")
    refused(ann.get(link), 403, "link_expired")
    again = ann.get(f"/jobs/{id}").json()["resultUrl"]
    assert again != link
    assert stranger.get(again).status_code == 200


def test_forged_link_is_not_found(kit: StudioKit, ann: ApiUser) -> None:
    """The response is the same as for a missing picture, even for the owner."""
    id, link = drawn(kit, ann)
    other, others = drawn(kit, ApiUser(kit, "bob"))
    query = parse_qs(urlsplit(link).query)
    expires, signature = query["expires"][0], query["signature"][0]
    forged = Signer(b"another secret").sign(id, kit.clock.now())
    none = refused(ann.get(f"/images/{NO_ID}?expires={expires}&signature={signature}"), 404, "not_found")
    wrong = [
        "",
        f"expires={expires}",
        f"signature={signature}",
        f"expires={int(expires) + 900}&signature={signature}",
        "expires=&signature=",
        f"expires={expires}&signature={signature[:-1]}",
        f"expires={expires}&signature=%C3%A9%00",
        f"expires=x&signature={signature}",
        f"expires={'9' * 5000}&signature={signature}",
        urlsplit(others).query,
    ]
    crossed = [f"/images/{other}?{urlsplit(link).query}", f"/images/%00?{urlsplit(link).query}", forged]
    for address in (*(f"/images/{id}?{query}" for query in wrong), *crossed):
        assert refused(ann.get(address), 404, "not_found") == none


def test_signed_link_without_a_picture_is_not_found(kit: StudioKit, ann: ApiUser) -> None:
    id = ann.create().json()["id"]
    for each in (id, NO_ID, "nonsense"):
        refused(ann.get(kit.gallery.signer.sign(each, kit.clock.now())), 404, "not_found")


def test_other_users_get_no_link(kit: StudioKit, ann: ApiUser) -> None:
    id, link = drawn(kit, ann)
    bob = ApiUser(kit, "bob")
    for path in (f"/jobs/{id}", "/jobs", "/assets", "/credits", "/session"):
        answer = bob.get(path)
        assert id not in answer.text.replace(f"no image {id}", "")
        assert urlsplit(link).query not in answer.text


def test_cached_image_is_not_sent_again(kit: StudioKit, ann: ApiUser, stranger: HttpClient) -> None:
    _, link = drawn(kit, ann)
    first = stranger.get(link)
    tag = first.headers["etag"]
    assert tag == f'"{hashlib.sha256(first.content).hexdigest()}"'
    for given in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        answer = stranger.get(link, headers={"If-None-Match": given})
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", tag)
    assert stranger.get(link, headers={"If-None-Match": '"other"'}).content == first.content
    kit.clock.advance(timedelta(hours=1))
    refused(stranger.get(link, headers={"If-None-Match": tag}), 403, "link_expired")


def test_head_returns_headers_without_the_image(kit: StudioKit, ann: ApiUser, stranger: HttpClient) -> None:
    _, link = drawn(kit, ann)
    got, head = stranger.get(link), stranger.request("HEAD", link)
    assert (head.status_code, head.content) == (200, b"")
    assert {name: head.headers[name] for name in ("content-type", "content-length", "etag")} == {
        "content-type": "image/png",
        "content-length": str(len(got.content)),
        "etag": got.headers["etag"],
    }


def test_picture_missing_in_the_storage_is_not_found(
    kit: StudioKit, ann: ApiUser, stranger: HttpClient, caplog: pytest.LogCaptureFixture
) -> None:
    id, link = drawn(kit, ann)
    (kit.directory / "originals" / id).unlink()
    assert "originals" not in refused(stranger.get(link), 404, "not_found")
    assert id in caplog.text


def test_unreachable_storage_gives_503(
    kit: StudioKit, ann: ApiUser, stranger: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, link = drawn(kit, ann)

    async def away(*_: object) -> bytes:
        raise TemporaryError("The bucket of secret is unreachable.")

    monkeypatch.setattr(Originals, "read", away)
    assert "secret" not in refused(stranger.get(link), 503, "storage_unavailable", "Try again")
