"""Request bodies: JSON and forms are parsed exactly, and malformed ones are refused."""

import httpx
import pytest

from apps.librarian.request_body import BadBody, UnsupportedType, parse_fields

FORM = "multipart/form-data; boundary=b"
NAMED = b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\n'


def test_json_object_is_parsed() -> None:
    assert parse_fields("application/json; charset=utf-8", b'{"book_id": 1, "source": "magnet:"}') == {
        "book_id": 1,
        "source": "magnet:",
    }


@pytest.mark.parametrize(
    "data", [b"", b"\r\n", b"\r\n--", b"--b", b"a\r\n\r\n--\r\n", b"\n--b--\n", bytes(range(256)) * 9, b"\r", b"--b--"]
)
def test_file_in_a_form_keeps_every_byte(data: bytes) -> None:
    """Line ends, dashes and the text of the boundary are ordinary bytes."""
    request = httpx.Request("POST", "http://library", data={"book_id": "1"}, files={"source": ("x.torrent", data)})
    assert parse_fields(request.headers["content-type"], request.read()) == {"book_id": "1", "source": data}


def test_text_around_a_form_is_ignored() -> None:
    body = b"before\r\n--b  \r\ncontent-disposition: form-data; name=x\r\n\r\n1\r\n--b\r\nContent-Type: text/plain\r\n"
    body += b"Content-Disposition: form-data; name*=utf-8''y\r\n\r\n\xc3\xa9\r\n--b--\r\nafter"
    assert parse_fields('multipart/form-data; boundary="b"', body) == {"x": "1", "y": "é"}


@pytest.mark.parametrize(
    ("kind", "body", "word"),
    [
        ("application/json", b"{", "JSON"),
        ("application/json", b"[]", "object"),
        ("application/json", b"\xff\xfe", "JSON"),
        ("application/json", b"[" * 100_000, "JSON"),
        ("application/json", b'{"book_id": ' + b"9" * 5000 + b"}", "JSON"),
        ("application/json", b"", "JSON"),
        ("multipart/form-data", b"", "boundary"),
        (FORM, b"", "cut off"),
        (FORM, b"--b\r\n", "cut off"),
        (FORM, NAMED + b"1\r\n", "cut off"),
        (FORM, b"--b\r\n\r\n1\r\n--b--", "no name"),
        (FORM, b"--b\r\nContent-Disposition: form-data; name=x\r\n--b--", "no name"),
        (FORM, b"--b\r\nContent-Disposition: attachment; name=x\r\n\r\n1\r\n--b--", "no name"),
        (FORM, b'--b\r\nContent-Disposition: form-data; name="' + b"x" * 5000 + b'"\r\n\r\n1\r\n--b--', "no name"),
        (FORM, NAMED + b"\xff\r\n--b--", "UTF-8"),
        (FORM, (NAMED + b"1\r\n") * 2 + b"--b--", "twice"),
        (FORM, b"--b\r\n\r\n\r\n" * 100 + b"--b--", "more than 20"),
    ],
)
def test_malformed_body_is_refused(kind: str, body: bytes, word: str) -> None:
    with pytest.raises(BadBody, match=word):
        parse_fields(kind, body)


@pytest.mark.parametrize(
    "kind",
    [
        "",
        "text/plain",
        "text/json",
        "application/x-www-form-urlencoded",
        "multipart/mixed; boundary=b",
        "nonsense",
        "a\r\nb: c",
    ],
)
def test_other_content_types_are_refused(kind: str) -> None:
    with pytest.raises(UnsupportedType, match="application/json"):
        parse_fields(kind, b"{}")
