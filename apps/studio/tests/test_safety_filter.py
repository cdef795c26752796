"""What counts as a refusal of the provider's safety filter, for which a user pays, and what does not."""

import json

import httpx
import pytest

from apps.studio.errors import Blocked, Hopeless, StudioError, Trouble
from apps.studio.providers import openai, replies
from apps.studio.tests.asking import FILTERS, failure
from apps.studio.tests.images_api import FakeImages
from apps.studio.tests.images_controls import Fault

SAFETY = "Your request was rejected as a result of our safety system."
POLICY = "The prompt goes against our Content Policy."


def judged(error: object, status: int = 400) -> StudioError:
    return replies.judged(httpx.Response(status), json.dumps({"error": error}).encode(), "key")


# ---------------------------------------------------------------- by its code
@pytest.mark.parametrize("fault", FILTERS, ids=lambda fault: f"{fault.status}-{fault.code}")
def test_the_safety_filter_is_known_by_its_code(images: FakeImages, fault: Fault) -> None:
    images.fail(fault)
    assert isinstance(failure(images), Blocked)


def test_a_filter_that_is_named_only_within_is_known_too() -> None:
    """As Azure puts it."""
    error = {"code": "BadRequest", "message": "It was filtered.", "inner_error": {"code": "ResponsibleAIPolicyViolation"}}
    assert isinstance(judged(error), Blocked)


@pytest.mark.parametrize("status", [429, 500])
def test_a_filters_code_under_another_status_is_trouble(images: FakeImages, status: int) -> None:
    images.fail(Fault.blocked(status=status))
    assert isinstance(failure(images), Trouble)


# ---------------------------------------------------------------- by its words
@pytest.mark.parametrize("fault", [Fault.said, Fault.text], ids=["an object", "a text"])
@pytest.mark.parametrize("words", [SAFETY, POLICY])
@pytest.mark.parametrize("status", [400, 403, 422])
def test_a_filter_that_names_no_code_is_known_by_its_words(images: FakeImages, fault: type[Fault], words: str, status: int) -> None:
    images.fail(fault(words, status))
    error = failure(images)
    assert isinstance(error, Blocked)
    assert words.rstrip(".") in str(error)


@pytest.mark.parametrize("nameless", [
    {}, {"code": None}, {"type": None}, {"code": None, "type": None}, {"code": "", "type": ""}, {"type": "invalid_request_error"},
    {"code": None, "type": "invalid_request_error"}, {"inner_error": {}},
], ids=str)
def test_an_error_has_no_name_in_many_ways(nameless: dict[str, object]) -> None:
    assert isinstance(judged({"message": SAFETY, **nameless}), Blocked)


@pytest.mark.parametrize("named", [
    {"code": "invalid_value"}, {"code": 1234}, {"type": "image_generation_user_error"}, {"type": 7}, {"inner_error": {"code": "Other"}},
], ids=str)
def test_words_about_safety_beside_another_name_cost_nobody_credits(named: dict[str, object]) -> None:
    """A user pays for a rejection, so the name counts where there is one: an account that is not verified is not the user's doing."""
    assert isinstance(judged({"message": SAFETY, **named}), Hopeless)


@pytest.mark.parametrize("words", [
    "Unknown parameter: 'moderation'.", "Invalid value for 'moderation': expected 'low' or 'auto'.", "Your organization must be verified to use this model.",
    "The content of the policy field is missing.",
])
@pytest.mark.parametrize("fault", [Fault.said, Fault.text], ids=["an object", "a text"])
def test_other_words_without_a_code_cost_nobody_credits(images: FakeImages, fault: type[Fault], words: str) -> None:
    images.fail(fault(words))
    error = failure(images)
    assert isinstance(error, Hopeless)
    assert words.rstrip(".") in str(error)


@pytest.mark.parametrize(("status", "meaning"), [(401, Hopeless), (404, Hopeless), (429, Trouble), (500, Trouble)])
def test_a_filters_words_under_another_status_are_not_the_filters(images: FakeImages, status: int, meaning: type[StudioError]) -> None:
    images.fail(Fault.said(SAFETY, status))
    assert isinstance(failure(images), meaning)


@pytest.mark.parametrize("status", [404, 429, 503])
def test_an_error_that_is_a_text_is_shown(images: FakeImages, status: int) -> None:
    images.fail(Fault.text("All our painters are at lunch.", status))
    assert "“All our painters are at lunch”" in str(failure(images))


# ---------------------------------------------------------------- by the picture
def test_a_picture_that_the_filter_holds_back_is_refused(images: FakeImages) -> None:
    images.fail(Fault.held_back())
    error = failure(images)
    assert isinstance(error, Blocked)
    assert "safety filter" in str(error)
    assert images.fetched == []


@pytest.mark.parametrize("said", [True, None, 0, "false"])
def test_a_picture_that_is_not_held_back_is_taken(said: object) -> None:
    body = json.dumps({"data": [{"b64_json": "AAAA", "respect_moderation": said}]}).encode()
    assert openai._image(body) == b"\0\0\0"
