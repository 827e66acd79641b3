"""Which hardware of this machine multiplies matrices faster in fewer bits. Importing this module loads no torch."""

from dltutorial import machine

CPU_FLAGS = {  # flags of CPUs whose matrix products are faster in this precision in the libraries that torch uses
    "bf16": {"avx512_bf16", "amx_bf16", "bf16"},
    "fp16": {"avx512_fp16", "amx_fp16", "asimdhp"},
}


def units_for(precision: str) -> tuple[str, ...] | None:
    """The units of this machine for matrix products in a precision.

    Args:
        precision: ``tf32``, ``bf16`` or ``fp16``.

    Returns:
        Flags of the CPU, or the tensor cores of the GPU. Empty if there are none: such products are then no faster than
        in float32, or far slower. None if the machine does not say.
    """
    gpus = machine.accelerators()
    if gpus:
        formats = gpus[0].tensor_core_dtypes
        if formats is None:
            return None
        return (f"{precision} tensor cores",) if precision in formats else ()
    flags = machine.cpu_units()
    if flags is None:
        return None
    return tuple(flag for flag in flags if flag in CPU_FLAGS.get(precision, ()))
