"""Reports and warnings of tests can be encoded, whatever text a test has met.

pytest-xdist sends them to its main process as UTF-8. Half a character (U+D800 to U+DFFF, which Python's strings can
hold) would end the whole session with INTERNALERROR, and nobody would learn which test has failed. Here it is escaped.
"""

import warnings
from typing import Any

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable():
    """What a worker sends of a report."""
    return _encodable((yield))


@pytest.hookimpl(tryfirst=True)
def pytest_warning_recorded(warning_message: warnings.WarningMessage) -> None:
    """Before a worker sends a warning; its text alone goes on where it cannot be sent as it is."""
    text = str(warning_message.message)
    if (sent := _encodable(text)) != text:
        warning_message.message = sent


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_encodable(name): _encodable(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return (list if isinstance(value, list) else tuple)(map(_encodable, value))
    return value
