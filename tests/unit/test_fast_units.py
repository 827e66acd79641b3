"""The further notebook of chapter 04 recognises from the names of GPU kernels which matmuls ran on tensor cores."""

import pytest
from chapter_code import written

from dltutorial.profile.events import Event, Trace

CHAPTER = written("further/04", "on_tensor_cores", "products", "tensor_core_share")
uses_tensor_cores, products, tensor_core_share = (
    CHAPTER[name] for name in ("on_tensor_cores", "products", "tensor_core_share")
)

# Names as profilers showed them on Volta, Turing, Ampere and Hopper.
ON_TENSOR_CORES = [
    "volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn",
    "turing_fp16_s1688gemm_fp16_256x128_ldg8_f2f_tn",
    "ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_relu_f2f_stages_64x6_tn",
    "cutlass_80_tensorop_f16_s16816gemm_relu_f16_128x128_32x4_tn_align8",
    "sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize96x128x32_stage4_warpsize2x2x1_tensor16x8x16_kernel",
    "sm90_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
    "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT",
    "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4>>",
    "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel)",
]
ON_ORDINARY_CORES = [
    "ampere_sgemm_128x64_tn",
    "volta_sgemm_128x32_sliced1x4_nn",
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x128_8x4_nn_align1>(cutlass_80_simt_sgemm::Params)",
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4_execute_kernel",
    "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false>",
]
NO_PRODUCT = [
    "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<4>>",
    "void at::native::vectorized_layer_norm_kernel<float, float>(int, float)",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(1688)",
    "void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate<float, float>",
    "void convertTensor_kernel<float, __half>(float, __half const*)",
]


def trace_of(names, category="kernel"):
    events = [Event(name, category, 10.0 * i, 0.5 + i, 1) for i, name in enumerate(names)]
    return Trace.of(events, ["thread 1", "GPU 0 stream 7"])


@pytest.mark.parametrize("name", ON_TENSOR_CORES)
def test_a_kernel_on_tensor_cores_is_recognised(name):
    assert uses_tensor_cores(name)


@pytest.mark.parametrize("name", ON_ORDINARY_CORES)
def test_a_matmul_on_ordinary_cores_does_not_count_as_tensor_cores(name):
    assert not uses_tensor_cores(name)
    assert tensor_core_share(products(trace_of([name]))) == 0


def test_kernels_that_are_no_matmul_are_left_out():
    found = products(trace_of(NO_PRODUCT))
    assert found == []
    assert tensor_core_share(found) is None


def test_operators_of_a_cpu_do_not_count():
    assert products(trace_of(["aten::conv2d", "mkldnn_gemm"], "operator")) == []


def test_the_share_is_one_of_time():
    found = products(trace_of([ON_ORDINARY_CORES[0], ON_TENSOR_CORES[3], ON_TENSOR_CORES[3]]))
    assert [(k.calls, k.seconds, on) for k, on in found] == [(2, 4.0, True), (1, 0.5, False)]
    assert tensor_core_share(found) == pytest.approx(4 / 4.5)
