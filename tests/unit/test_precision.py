import pytest

from dltutorial import machine
from dltutorial.step.precision import units_for


@pytest.mark.parametrize(
    ("flags", "bf16", "fp16"),
    [
        (None, None, None),
        (("avx2", "avx512f", "avx512_vnni"), (), ()),
        (("avx512f", "avx512_bf16", "amx_bf16"), ("avx512_bf16", "amx_bf16"), ()),
        (("asimd", "asimdhp", "bf16"), ("bf16",), ("asimdhp",)),
    ],
)
def test_the_flags_of_a_cpu_name_its_units(monkeypatch, flags, bf16, fp16):
    monkeypatch.setattr(machine, "accelerators", tuple)
    monkeypatch.setattr(machine, "cpu_units", lambda: flags)
    assert (units_for("bf16"), units_for("fp16")) == (bf16, fp16)
