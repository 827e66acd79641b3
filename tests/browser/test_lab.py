"""The server that ``make lab`` starts: whom it answers, where it listens, what it opens first."""

import urllib.error
import urllib.request

import psutil
import pytest

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]


def status(url, **headers):
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=100).status
    except urllib.error.HTTPError as error:
        return error.code


def test_server_answers_only_who_has_the_token(lab):
    assert len(lab.token) >= 32
    asked = f"{lab.url}api/contents"
    assert status(asked, Authorization=f"token {lab.token}") == 200
    assert status(asked) == status(asked, Authorization="token wrong") == 403
    login = urllib.request.urlopen(f"{lab.url}lab", timeout=100)
    assert "/login" in login.url


def test_server_and_kernels_listen_on_loopback_only(lab):
    server = psutil.Process(lab.pid)
    listening = {
        place.laddr.ip
        for process in [server, *server.children(recursive=True)]
        for place in process.net_connections("inet")
        if place.status == psutil.CONN_LISTEN
    }
    assert listening
    assert listening <= {"127.0.0.1", "::1"}


def test_make_lab_opens_the_readme(page, lab):
    page.goto(f"{lab.url}?token={lab.token}")
    page.wait_for_selector(".lm-TabBar-tab >> text=README.md")
