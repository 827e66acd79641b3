import pytest
import sub_pytest

pytestmark = pytest.mark.ci  # the tests of the tests

WITH = "import encodable\n\ndef pytest_configure(config):\n    config.pluginmanager.register(encodable)\n"
HALF_A_CHARACTER = r"""
import warnings

def test_wrong(record_property):
    record_property("of", ("\ud800", {"\udfff": 1}))
    assert not "half \ud800"

def test_warns():
    warnings.warn("half \udcff", stacklevel=1)

def test_right():
    pass
"""


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "in workers"])
def test_half_a_character_in_a_message_ends_no_session(tmp_path, workers):
    said = sub_pytest.run(tmp_path, WITH, *workers, test_half=HALF_A_CHARACTER)
    assert "INTERNALERROR" not in said
    assert "1 failed, 2 passed, 1 warning" in said
    assert "half \\ud800" in said
    assert "half \\udcff" in said
