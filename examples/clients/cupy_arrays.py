"""CuPy's arrays in a weir pool, on two streams:

    PYTHONPATH=<prefix>/share/weir/python python3 examples/clients/cupy_arrays.py
"""

import cupy
import weir

weir.use_with_cupy()

streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
sums = []
for n in range(100):
    with streams[n % 2]:
        sums.append(cupy.arange(10000 * (n + 1), dtype=cupy.float64).sum())
for stream in streams:
    stream.synchronize()
assert all(float(total) == sum(range(10000 * (n + 1))) for n, total in enumerate(sums))
for name in ("used_bytes_peak", "reserved_bytes_peak", "allocations", "cache_hits"):
    print(name, weir.stats()[name])
