"""Who may ask what of the admin port: the rules, as values."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.admin.guard import Asked, Guard, Refusal, is_loopback, same_address
from extproc.admin.token import TokenError
from extproc.config.settings import AdminSettings, TlsSettings

DRAIN = "/v1/endpoints/10.0.0.1:8000/drain"
LOOPBACK = Guard.of(AdminSettings(), {})
OPEN = Guard.of(AdminSettings(listen="0.0.0.0:9003"), {})
TOKEN = Guard.of(AdminSettings(listen="0.0.0.0:9003"), {"EXTPROC_ADMIN_TOKEN": "t0ken"})
TLS = TlsSettings(cert_file="c", key_file="k", client_ca_file="ca")
MUTUAL = Guard.of(AdminSettings(listen="0.0.0.0:9003", tls=TLS), {})


def asked(method: str, path: str, *, certified: bool = False, of_itself: bool = False, **headers: str) -> Asked:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Asked(method, path, named, "Content-Type" in named, certified, of_itself)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def status(guard: Guard, of: Asked) -> int | None:
    """None: it is answered."""
    refusal = guard.judge(of)
    return None if refusal is None else refusal.status


@pytest.mark.parametrize(
    ("method", "path"), [("POST", DRAIN), ("DELETE", DRAIN), ("POST", "/explain"), ("PUT", "/new")]
)
def test_actions_beyond_loopback_need_the_token(method: str, path: str) -> None:
    assert status(LOOPBACK, asked(method, path)) is None
    assert status(OPEN, asked(method, path)) == 403
    assert status(OPEN, asked(method, path, **bearer("any"))) == 403
    assert status(TOKEN, asked(method, path)) == 401
    assert status(TOKEN, asked(method, path, **bearer("t0kem"))) == 403
    assert status(TOKEN, asked(method, path, Authorization="Basic t0ken")) == 403
    assert status(TOKEN, asked(method, path, **bearer("t0ken"))) is None
    assert status(TOKEN, asked(method, path, Authorization="bearer  t0ken ")) is None


def test_without_a_token_it_is_said_how_to_allow_actions() -> None:
    refusal = OPEN.judge(asked("POST", DRAIN))
    assert refusal is not None
    for words in ("admin.token_file", "EXTPROC_ADMIN_TOKEN", "Authorization: Bearer", "--token-file", "127.0.0.1"):
        assert words in refusal.reason


def test_it_is_known_whether_anybody_may_act() -> None:
    assert [each.nobody_may_act for each in (LOOPBACK, OPEN, TOKEN, MUTUAL)] == [False, True, False, False]


def test_a_token_that_is_set_is_needed_on_loopback_too() -> None:
    guard = Guard.of(AdminSettings(), {"EXTPROC_ADMIN_TOKEN": "t0ken"})
    assert status(guard, asked("POST", DRAIN)) == 401
    assert status(guard, asked("GET", "/status")) is None


@pytest.mark.parametrize("path", ["/status", "/metrics", "/decisions", "/v1/drains", "/autoscale/v1/pools"])
def test_reads_are_open_unless_all_is_protected(path: str) -> None:
    guard = Guard.of(AdminSettings(listen="0.0.0.0:9003", protect="all"), {"EXTPROC_ADMIN_TOKEN": "t0ken"})
    assert [status(each, asked("GET", path)) for each in (LOOPBACK, OPEN, TOKEN)] == [None] * 3
    assert status(guard, asked("GET", path)) == 401
    assert status(guard, asked("GET", path, **bearer("t0ken"))) is None


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_the_probes_are_open_to_all(path: str) -> None:
    guard = Guard.of(AdminSettings(listen="0.0.0.0:9003", tls=TLS, protect="all"), {"EXTPROC_ADMIN_TOKEN": "t0ken"})
    assert status(guard, asked("GET", path, Host="probe.example")) is None
    assert status(guard, asked("POST", path)) == 403


def test_a_client_certificate_is_as_good_as_a_token() -> None:
    assert status(MUTUAL, asked("POST", DRAIN, certified=True)) is None
    assert [status(MUTUAL, asked(method, DRAIN)) for method in ("GET", "POST")] == [403, 403]
    assert status(MUTUAL, asked("POST", DRAIN, of_itself=True)) == 403


def test_with_both_a_certificate_and_a_token_are_needed() -> None:
    guard = Guard.of(AdminSettings(tls=TLS), {"EXTPROC_ADMIN_TOKEN": "t0ken"})
    assert status(guard, asked("POST", DRAIN, certified=True)) == 401
    assert status(guard, asked("POST", DRAIN, **bearer("t0ken"))) == 403
    assert status(guard, asked("POST", DRAIN, certified=True, **bearer("t0ken"))) is None


def test_a_server_may_drain_itself_without_a_token() -> None:
    assert [status(each, asked("POST", DRAIN, of_itself=True)) for each in (LOOPBACK, OPEN, TOKEN)] == [None] * 3


@pytest.mark.parametrize(
    ("host", "foreign"),
    [
        *((name, False) for name in ("127.0.0.1:9003", "localhost:9003", "LOCALHOST", "[::1]:9003", "[::1]", "")),
        *(
            (name, True)
            for name in ("evil.example:9003", "evil.example", "localhost.evil.example", "127.0.0.1.nip.io:80")
        ),
    ],
)
def test_a_page_whose_name_was_made_to_resolve_to_this_machine_is_refused(host: str, foreign: bool) -> None:
    """DNS rebinding: to the browser the page and the port are of one origin, but the page's name is in `Host`."""
    guard = Guard.of(AdminSettings(), {"EXTPROC_ADMIN_TOKEN": "t0ken"})
    for each in (LOOPBACK, guard):
        assert status(each, asked("GET", "/status", Host=host)) == (403 if foreign else None)
    assert status(OPEN, asked("GET", "/status", Host=host)) is None


@pytest.mark.parametrize("guard", [LOOPBACK, TOKEN, MUTUAL], ids=["loopback", "token", "mutual"])
@pytest.mark.parametrize("header", [{"Origin": "http://evil.example"}, {"Sec_Fetch_Site": "cross-site"}])
def test_a_page_in_a_browser_can_do_nothing(guard: Guard, header: dict[str, str]) -> None:
    """Cross-site request forgery: a person who may act looks at a page that sends something."""
    for method in ("POST", "DELETE"):
        refusal = guard.judge(asked(method, DRAIN, certified=True, **header, **bearer("t0ken")))
        assert refusal is not None
        assert refusal.reason.startswith("this is not for browsers")


@pytest.mark.parametrize("kind", ["", "text/plain", "text/plain;charset=UTF-8", "application/x-www-form-urlencoded"])
def test_a_body_must_not_be_a_form(kind: str) -> None:
    """Of what a page may send without being asked by the browser first, in one too old to say where it comes from."""
    refusal = LOOPBACK.judge(asked("POST", "/explain", Content_Type=kind))
    assert refusal is not None
    assert (refusal.status, "Content-Type: application/json" in refusal.reason) == (415, True)
    assert status(LOOPBACK, asked("POST", "/explain", Content_Type="application/json; charset=utf-8")) is None


def test_the_token_is_read_anew_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    guard = Guard.of(AdminSettings(listen="[::]:9003", token_file=str(file)), {"EXTPROC_ADMIN_TOKEN": "other"})
    assert status(guard, asked("POST", DRAIN, **bearer("first"))) is None
    file.write_text("second")
    assert status(guard, asked("POST", DRAIN, **bearer("first"))) == 403
    assert status(guard, asked("POST", DRAIN, **bearer("second"))) is None
    file.unlink()
    refusal = guard.judge(asked("POST", DRAIN, **bearer("second")))
    assert refusal is not None
    assert (refusal.status, "admin.token_file: cannot read" in refusal.reason) == (503, True)
    assert status(guard, asked("GET", "/status")) is None


@pytest.mark.parametrize("text", ["", " \n", "two words", "line\nbreak", "späß"])
def test_what_is_no_token_keeps_the_service_from_starting_and_is_not_told(tmp_path: Path, text: str) -> None:
    file = tmp_path / "token"
    file.write_text(text)
    with pytest.raises(TokenError, match=re.escape(f"admin.token_file: {file} must hold one token")) as error:
        Guard.of(AdminSettings(token_file=str(file)), {})
    assert not text.strip() or text not in str(error.value)
    if text:
        with pytest.raises(TokenError, match="EXTPROC_ADMIN_TOKEN must hold one token"):
            Guard.of(AdminSettings(), {"EXTPROC_ADMIN_TOKEN": text})


def test_all_protected_by_nothing_is_a_mistake() -> None:
    with pytest.raises(TokenError, match=r"admin\.protect: all, and there is no token; set admin\.token_file"):
        Guard.of(AdminSettings(protect="all"), {})
    assert Guard.of(AdminSettings(protect="all", tls=TLS), {})


@given(
    st.sampled_from(["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "get", "X"]),
    st.text(max_size=20),
    st.dictionaries(st.sampled_from(["Host", "Origin", "Authorization", "Content-Type"]), st.text(max_size=20)),
    st.booleans(),
)
def test_whatever_is_asked_there_is_an_answer_and_no_action_without_the_token(
    method: str, path: str, headers: dict[str, str], has_body: bool
) -> None:
    of = Asked(method, path, headers, has_body, certified=False, of_itself=False)
    for guard in (OPEN, TOKEN, MUTUAL):
        found = guard.judge(of)
        assert found is None or isinstance(found, Refusal)
        if method not in ("GET", "HEAD"):
            assert found is not None


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        *((host, True) for host in ("127.0.0.1", "127.3.2.1", "::1", "localhost")),
        *((host, False) for host in ("0.0.0.0", "::", "10.0.0.1", "extproc")),
    ],
)
def test_what_is_a_loopback_address(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("fd00::1", "fd00:0::1", True),
        ("fe80::1%eth0", "fe80::1", True),
        ("10.0.0.2", "10.0.0.1", False),
        ("10.0.0.1", "vllm", False),
        (None, "10.0.0.1", False),
    ],
)
def test_one_address_may_be_written_in_several_ways(one: str | None, other: str, same: bool) -> None:
    assert same_address(one, other) is same
