"""Which responses count as a rejection by the provider's safety filter, for which users pay."""

import json

import httpx
import pytest

from apps.studio.clients import openai_errors, openai_images
from apps.studio.errors import PermanentError, SafetyBlocked, StudioError, TemporaryError
from apps.studio.tests.fake_images_api import FakeImages
from apps.studio.tests.fake_images_controls import Fault
from apps.studio.tests.image_requests import FILTERS, failure

SAFETY = "Your request was rejected as a result of our safety system."
POLICY = "The prompt goes against our Content Policy."


def judged(error: object, status: int = 400) -> StudioError:
    return openai_errors.classify_error(httpx.Response(status), json.dumps({"error": error}).encode(), "key")


# ---------------------------------------------------------------- recognized by its code
@pytest.mark.parametrize("fault", FILTERS, ids=lambda fault: f"{fault.status}-{fault.code}")
def test_filter_is_recognized_by_its_code(images: FakeImages, fault: Fault) -> None:
    images.fail(fault)
    assert isinstance(failure(images), SafetyBlocked)


def test_filter_code_of_an_inner_error_is_recognized() -> None:
    """Azure sends it in this form."""
    error = {
        "code": "BadRequest",
        "message": "It was filtered.",
        "inner_error": {"code": "ResponsibleAIPolicyViolation"},
    }
    assert isinstance(judged(error), SafetyBlocked)


@pytest.mark.parametrize("status", [429, 500])
def test_filter_code_with_another_status_is_a_temporary_error(images: FakeImages, status: int) -> None:
    images.fail(Fault.blocked(status=status))
    assert isinstance(failure(images), TemporaryError)


# ---------------------------------------------------------------- recognized by its message
@pytest.mark.parametrize("fault", [Fault.said, Fault.text], ids=["an object", "a text"])
@pytest.mark.parametrize("words", [SAFETY, POLICY])
@pytest.mark.parametrize("status", [400, 403, 422])
def test_filter_without_a_code_is_recognized_by_its_message(
    images: FakeImages, fault: type[Fault], words: str, status: int
) -> None:
    images.fail(fault(words, status))
    error = failure(images)
    assert isinstance(error, SafetyBlocked)
    assert words.rstrip(".") in str(error)


@pytest.mark.parametrize(
    "nameless",
    [
        {},
        {"code": None},
        {"type": None},
        {"code": None, "type": None},
        {"code": "", "type": ""},
        {"type": "invalid_request_error"},
        {"code": None, "type": "invalid_request_error"},
        {"inner_error": {}},
    ],
    ids=str,
)
def test_missing_codes_in_all_forms_are_recognized(nameless: dict[str, object]) -> None:
    assert isinstance(judged({"message": SAFETY, **nameless}), SafetyBlocked)


@pytest.mark.parametrize(
    "named",
    [
        {"code": "invalid_value"},
        {"code": 1234},
        {"type": "image_generation_user_error"},
        {"type": 7},
        {"inner_error": {"code": "Other"}},
    ],
    ids=str,
)
def test_filter_phrases_with_another_code_are_not_rejections(named: dict[str, object]) -> None:
    """Users pay for rejections, so the code counts: an unverified account is not the user's fault."""
    assert isinstance(judged({"message": SAFETY, **named}), PermanentError)


@pytest.mark.parametrize(
    "words",
    [
        "Unknown parameter: 'moderation'.",
        "Invalid value for 'moderation': expected 'low' or 'auto'.",
        "Your organization must be verified to use this model.",
        "The content of the policy field is missing.",
    ],
)
@pytest.mark.parametrize("fault", [Fault.said, Fault.text], ids=["an object", "a text"])
def test_other_messages_without_a_code_are_not_rejections(images: FakeImages, fault: type[Fault], words: str) -> None:
    images.fail(fault(words))
    error = failure(images)
    assert isinstance(error, PermanentError)
    assert words.rstrip(".") in str(error)


@pytest.mark.parametrize(
    ("status", "meaning"), [(401, PermanentError), (404, PermanentError), (429, TemporaryError), (500, TemporaryError)]
)
def test_filter_phrases_with_another_status_are_not_rejections(
    images: FakeImages, status: int, meaning: type[StudioError]
) -> None:
    images.fail(Fault.said(SAFETY, status))
    assert isinstance(failure(images), meaning)


@pytest.mark.parametrize("status", [404, 429, 503])
def test_error_that_is_a_string_is_shown(images: FakeImages, status: int) -> None:
    images.fail(Fault.text("All our painters are at lunch.", status))
    assert "“All our painters are at lunch”" in str(failure(images))


# ---------------------------------------------------------------- recognized by the image
def test_image_held_back_by_the_filter_is_rejected(images: FakeImages) -> None:
    images.fail(Fault.held_back())
    error = failure(images)
    assert isinstance(error, SafetyBlocked)
    assert "safety filter" in str(error)
    assert images.fetched == []


@pytest.mark.parametrize("said", [True, None, 0, "false"])
def test_image_that_passed_the_filter_is_returned(said: object) -> None:
    body = json.dumps({"data": [{"b64_json": "AAAA", "respect_moderation": said}]}).encode()
    assert openai_images._image(body) == b"\0\0\0"
