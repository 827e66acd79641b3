import platform

import pytest

from dltutorial.profile import onednn

SAID = """onednn_verbose,v1,info,oneDNN v3.12.0
dtype float32
dtype bfloat16
onednn_verbose,v1,primitive,exec,cpu,matmul,brg_matmul:avx512_core_bf16,undef,src:bf16::blocked:ab::f0,,256x256,0.05
onednn_verbose,v1,primitive,exec,cpu,reorder,jit:uni,undef,src:bf16::blocked:ab::f0,,256x256,0.05
onednn_verbose,v1,primitive,exec,cpu,matmul,brg_matmul:avx512_core_bf16,undef,src:bf16::blocked:ab::f0,,256x256,0.05
"""


def test_names_are_found_once_and_by_dtype():
    assert onednn.parse(SAID) == {"float32": (), "bfloat16": ("brg_matmul:avx512_core_bf16",)}


@pytest.mark.parametrize(
    ("name", "units"),
    [
        ("brg_matmul:avx512_core_bf16", True),
        ("brg_matmul:avx10_1_512_amx", True),
        ("brgemm:avx512_core_fp16", True),
        ("gemm:jit:bf16", False),
        ("brg_matmul:avx512_core", False),
        ("ref:any", False),
        ("gemm:acl", None),
        ("brg_matmul:sve_256", None),
    ],
)
def test_a_name_tells_its_instructions(name, units):
    assert onednn.uses_units(name) is units


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="names of x86 processors")
def test_this_cpu_names_what_multiplies_in_bf16():
    found = onednn.implementations(["bfloat16"])
    assert all(":" in name for name in found["bfloat16"])
    assert found["bfloat16"]


def test_a_process_that_fails_finds_nothing():
    assert onednn.implementations(["no_such_dtype"]) == {"no_such_dtype": ()}
