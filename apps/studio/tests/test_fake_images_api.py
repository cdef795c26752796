"""The fake Images API follows the protocol: it refuses what the real API refuses."""

import base64
import io
import json
import threading
from collections.abc import Iterator

import httpx
import pytest
from PIL import Image

from apps.studio.tests.fake_images_api import FakeImages, Fault, png

WISH = {"model": "gpt-image-1", "prompt": "A harbour", "n": 1, "size": "1024x1024"}


@pytest.fixture
def http(images: FakeImages) -> Iterator[httpx.Client]:
    with httpx.Client(
        base_url=images.url, headers={"Authorization": f"Bearer {images.api_key}"}, verify=False
    ) as client:
        yield client


def ask(http: httpx.Client, **fields: object) -> httpx.Response:
    return http.post("/images/generations", json=WISH | fields)


@pytest.mark.parametrize("size", ["1024x1024", "1536x1024", "1024x1536"])
def test_response_contains_an_image_of_the_requested_size(http: httpx.Client, size: str) -> None:
    answer = ask(http, size=size).json()
    with Image.open(io.BytesIO(base64.b64decode(answer["data"][0]["b64_json"]))) as image:
        assert (image.format, f"{image.width}x{image.height}") == ("PNG", size)
    assert {"created", "data", "usage", "size", "quality"} <= answer.keys()


def test_link_in_the_response_returns_the_image(images: FakeImages, http: httpx.Client) -> None:
    images.answers = "url"
    [entry] = ask(http).json()["data"]
    file = httpx.get(entry["url"], verify=False)
    assert (file.content, file.headers["Content-Type"]) == (png("1024x1024"), "image/png")
    assert "b64_json" not in entry
    assert images.fetched == [*images.files]
    assert httpx.get(f"{images.host}/files/unknown", verify=False).status_code == 404


def test_configured_picture_is_returned(images: FakeImages, http: httpx.Client) -> None:
    images.picture = b"any bytes"
    assert base64.b64decode(ask(http).json()["data"][0]["b64_json"]) == b"any bytes"


@pytest.mark.parametrize("given", [None, "Bearer", "Basic abc", "Bearer sk-wrong"])
def test_wrong_key_is_refused(images: FakeImages, given: str | None) -> None:
    answer = httpx.post(
        f"{images.url}/images/generations", json=WISH, headers={"Authorization": given} if given else {}, verify=False
    )
    assert (answer.status_code, answer.json()["error"]["type"]) == (401, "invalid_request_error")
    assert images.asked == []


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"seed": 5}, "unknown_parameter", "seed"), ({"response_format": "url"}, "unknown_parameter",
        "response_format"),
        ({"size": "64x64"}, "invalid_value", "size"), ({"n": 0}, "integer_below_min_value", "n"), ({"n": 11},
        "integer_above_max_value", "n"),
        ({"n": "1"}, "invalid_type", "n"), ({"n": True}, "invalid_type", "n"), ({"prompt": 5}, "invalid_type",
        "prompt"),
        ({"prompt": ""}, "empty_string", "prompt"),
        ({"prompt": "x" * 32_001}, "string_above_max_length", "prompt"), ({"model": None}, "invalid_type", "model"),
    ],
)  # fmt: skip
def test_invalid_fields_are_refused_by_name(
    images: FakeImages, http: httpx.Client, fields: dict[str, object], code: str, param: str
) -> None:
    answer = ask(http, **fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["code"], error["param"]) == (
        400,
        "invalid_request_error",
        code,
        param,
    )
    assert images.asked == []


def test_link_model_accepts_a_response_format(images: FakeImages, http: httpx.Client) -> None:
    images.answers = "url"
    assert ask(http, response_format="url").status_code == 200


def test_body_that_is_not_json_is_refused(http: httpx.Client) -> None:
    for body in ("", "{", "[]", "null"):
        assert (
            http.post("/images/generations", content=body, headers={"Content-Type": "application/json"}).status_code
            == 400
        )
    assert (
        http.post("/images/generations", content=json.dumps(WISH), headers={"Content-Type": "text/plain"}).status_code
        == 415
    )
    assert (
        http.post("/images/generations", json={"model": "gpt-image-1"}).json()["error"]["code"]
        == "missing_required_parameter"
    )


def test_other_addresses_and_methods_do_not_exist(http: httpx.Client) -> None:
    assert http.get("/images/generations").status_code == 405
    assert http.post("/images/edits", json=WISH).status_code == 404


def test_same_idempotency_key_makes_another_image(images: FakeImages, http: httpx.Client) -> None:
    """OpenAI does not support Idempotency-Key, so no test may rely on it."""
    for _ in range(2):
        http.post("/images/generations", json=WISH, headers={"Idempotency-Key": "job-1"})
    assert [asked.key for asked in images.asked] == ["job-1", "job-1"]


def test_faults_are_used_in_order(images: FakeImages, http: httpx.Client) -> None:
    images.fail(Fault.limited(7), Fault.blocked("moderation_blocked"), Fault.trouble(503), Fault.no_image())
    limited, blocked, trouble, empty, last = (ask(http) for _ in range(5))
    assert (limited.status_code, limited.headers["Retry-After"], limited.json()["error"]["code"]) == (
        429,
        "7",
        "rate_limit_exceeded",
    )
    assert (blocked.status_code, blocked.json()["error"]["type"]) == (400, "image_generation_user_error")
    assert (trouble.status_code, trouble.json()["error"]["type"]) == (503, "server_error")
    assert (empty.status_code, empty.json()["data"]) == (200, [])
    assert last.json()["data"]


@pytest.mark.parametrize("fault", [Fault.cut(), Fault.torn()], ids=lambda fault: fault.kind)
def test_cut_closes_the_connection(images: FakeImages, http: httpx.Client, fault: Fault) -> None:
    images.fail(fault)
    with pytest.raises(httpx.RemoteProtocolError):
        ask(http)


def test_hanging_request_is_recorded(images: FakeImages, http: httpx.Client) -> None:
    images.fail(Fault.hang())
    with pytest.raises(httpx.ReadTimeout):
        http.post("/images/generations", json=WISH, timeout=0.3)
    assert len(images.asked) == 1
    images.wait(lambda: images.inside == 0)


def test_blocked_words_ignore_case(images: FakeImages, http: httpx.Client) -> None:
    images.block_words = {"dragon"}
    assert ask(http, prompt="A Dragon").json()["error"]["code"] == "content_policy_violation"
    assert ask(http, prompt="A fox").status_code == 200


def test_held_requests_wait_until_the_gate_is_set(images: FakeImages, http: httpx.Client) -> None:
    statuses: list[int] = []
    threads = [threading.Thread(target=lambda: statuses.append(ask(http).status_code)) for _ in range(3)]
    with images.holding() as gate:
        for thread in threads:
            thread.start()
        images.wait(lambda: images.inside == 3)
        assert statuses == []
        gate.set()
        for thread in threads:
            thread.join()
    assert statuses == [200] * 3
    assert ask(http).status_code == 200


def test_wait_fails_after_its_timeout(images: FakeImages) -> None:
    with pytest.raises(AssertionError, match="did not happen"):
        images.wait(lambda: False, seconds=0.01)


def test_server_restarts_at_the_same_address(images: FakeImages, http: httpx.Client) -> None:
    assert ask(http).status_code == 200
    images.down()
    with pytest.raises(httpx.TransportError):
        ask(http)
    images.up()
    assert ask(http).status_code == 200
