"""``mlxgen.metal``: kernels of ``mx.fast.metal_kernel``, emulated on the CPU."""
