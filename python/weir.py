"""weir for PyTorch and CuPy: one file, no build step, nothing but the standard library.

    import weir
    weir.use_with_torch()      # before the first tensor on a GPU
    weir.use_with_cupy()
    weir.stats()["used_bytes"]

The shared library is looked for in this order: the path in WEIR_LIBRARY; beside this file, and in the lib folders of the
prefix that this file is installed in; where pkg-config says that weir is (PKG_CONFIG_PATH); by the system's loader
(LD_LIBRARY_PATH, ldconfig). The pools take their options from the environment (WEIR_MAX_BYTES and the others).

What each framework's interface can and cannot do is in docs/clients.md.
"""

import ctypes
import ctypes.util
import operator
import os
import subprocess
import sys

__all__ = [
    "Error",
    "HOST",
    "cupy_allocator",
    "library",
    "library_path",
    "mem_pool_allocator",
    "squeeze",
    "stats",
    "use_with_cupy",
    "use_with_torch",
]

#: The device number of plain host memory.
HOST = -1

_SONAME = "libweir.so.0"


class Error(RuntimeError):
    """A call of weir failed, or weir cannot be used here. `status` is weir's status, or None."""

    def __init__(self, message, status=None):
        super().__init__(message)
        self.status = status


class _Stats(ctypes.Structure):
    """weir_pool_stats of weir.h."""

    _fields_ = (
        [("struct_size", ctypes.c_size_t)]
        + [
            (name, ctypes.c_uint64)
            for name in (
                "used_bytes",
                "used_bytes_peak",
                "reserved_bytes",
                "reserved_bytes_peak",
                "cached_bytes",
                "free_bytes",
                "pending_bytes",
                "idle_bytes",
                "largest_free_bytes",
                "allocations",
                "frees",
                "failures",
                "cache_hits",
                "cache_misses",
                "pages_moved",
                "page_creates",
                "page_releases",
                "page_maps",
                "page_unmaps",
                "event_calls",
                "driver_calls",
                "squeezes",
            )
        ]
        + [("fragmentation", ctypes.c_double)]
    )


_library = None
_kept = []  # what frameworks call as long as the process lives


def _pkg_config():
    """The library's folder as pkg-config tells it, or None."""
    command = [os.environ.get("PKG_CONFIG") or "pkg-config", "--variable=libdir", "weir"]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    folder = os.fsdecode(done.stdout).strip()
    if not os.path.isdir(folder):
        folder = folder.replace("\\ ", " ")  # pkgconf's blanks are for a shell
    return folder if done.returncode == 0 and folder else None


def _beside():
    """Folders near this file: its own, and those of an installed prefix or of a build of the sources."""
    for file in dict.fromkeys((os.path.abspath(__file__), os.path.realpath(__file__))):  # it may be a link into the prefix
        here = os.path.dirname(file)
        yield here
        prefix = os.path.dirname(os.path.dirname(os.path.dirname(here)))  # of share/weir/python
        for lib in ("lib", "lib64", os.path.join("lib", getattr(sys.implementation, "_multiarch", ""))):
            yield os.path.join(prefix, lib)
        yield os.path.join(os.path.dirname(here), "build", "lib")


def library_path():
    """Where libweir is, or its name for the system's loader. Raises weir.Error, which says where it was looked for."""
    named = os.environ.get("WEIR_LIBRARY")
    if named:
        if not os.path.isfile(named):
            raise Error(f"WEIR_LIBRARY is {named}, and there is no such file")
        return os.path.abspath(named)
    for folder in _beside():
        for name in (_SONAME, "libweir.so"):
            path = os.path.join(folder, name)
            if os.path.isfile(path):
                return path
    folder = _pkg_config()
    if folder is not None:
        path = os.path.join(folder, _SONAME)
        if os.path.isfile(path):
            return path
    for name in (_SONAME, ctypes.util.find_library("weir")):
        if name is None:
            continue
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return name
    raise Error(
        f"{_SONAME} was not found: not beside {os.path.abspath(__file__)}, nor by pkg-config, nor by the system's loader; "
        "install weir, or set WEIR_LIBRARY to the library's path"
    )


def library():
    """libweir, opened, with the types of what this module calls. Raises weir.Error."""
    global _library
    if _library is None:
        path = library_path()
        try:
            opened = ctypes.CDLL(path)
        except OSError as error:
            raise Error(f"{path} cannot be opened: {error}") from error
        pool, status = ctypes.c_void_p, ctypes.c_int
        try:
            for name, result, arguments in (
                ("weir_last_error", ctypes.c_char_p, []),
                ("weir_status_name", ctypes.c_char_p, [ctypes.c_int]),
                ("weir_device_get_pool", status, [ctypes.c_int, ctypes.POINTER(pool)]),
                ("weir_pool_get_stats", status, [pool, ctypes.POINTER(_Stats)]),
                ("weir_pool_squeeze", status, [pool, ctypes.POINTER(ctypes.c_size_t)]),
                ("weir_torch_alloc", pool, [ctypes.c_size_t, ctypes.c_int, pool]),
                ("weir_torch_alloc_or_throw", pool, [ctypes.c_size_t, ctypes.c_int, pool]),
                ("weir_torch_free", None, [pool, ctypes.c_size_t, ctypes.c_int, pool]),
                ("weir_torch_record_stream", None, [pool, pool]),
                ("weir_torch_empty_cache", None, []),
                ("weir_cupy_malloc", pool, [pool, ctypes.c_size_t, ctypes.c_int]),
                ("weir_cupy_free", None, [pool, pool, ctypes.c_int]),
            ):
                function = getattr(opened, name)
                function.restype, function.argtypes = result, arguments
        except AttributeError as error:
            raise Error(f"{path} is not a weir that this module knows: {error}") from error
        opened.path = path
        _library = opened
    return _library


def _check(status):
    if status != 0:
        name = library().weir_status_name(status).decode()
        raise Error(f"{name}: {library().weir_last_error().decode(errors='replace')}", status)


def _address(name):
    return ctypes.cast(getattr(library(), name), ctypes.c_void_p).value


def _gpu(device):
    """The device's number; None is the framework's current one."""
    if device is not None:
        number = operator.index(device)
        # ctypes would cut it to 32 bits, and be another device's
        if not -(1 << 31) <= number < 1 << 31:
            raise Error(f"device {number} does not exist: pass a GPU's ordinal")
        return number
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and torch.cuda.is_available():
        return torch.cuda.current_device()
    if cupy is not None:
        return cupy.cuda.runtime.getDevice()
    return 0


def _pool(device):
    pool = ctypes.c_void_p()
    _check(library().weir_device_get_pool(_gpu(device), ctypes.byref(pool)))
    return pool


def stats(device=None):
    """The counters of a device's pool, as a dict: those of weir_pool_stats, in bytes or numbers.

    `device` is a GPU's number, or weir.HOST; None is PyTorch's current device if it is loaded, else CuPy's, else 0. The
    pool is made if there is none. Raises weir.Error.
    """
    pool = _pool(device)
    found = _Stats(struct_size=ctypes.sizeof(_Stats))
    _check(library().weir_pool_get_stats(pool, ctypes.byref(found)))
    return {name: getattr(found, name) for name, _ in _Stats._fields_ if name != "struct_size"}


def squeeze(device=None):
    """Gives back everything that is free in a device's pool, and returns how many bytes that was.

    Waits for work that is queued behind frees. `device` is as for `stats`. Raises weir.Error.
    """
    released = ctypes.c_size_t()
    _check(library().weir_pool_squeeze(_pool(device), ctypes.byref(released)))
    return released.value


def _torch_memory():
    try:
        import torch
    except ImportError as error:
        raise Error(f"PyTorch cannot be imported: {error}") from error
    memory = getattr(torch.cuda, "memory", None)
    if not hasattr(memory, "CUDAPluggableAllocator"):
        raise Error(f"PyTorch {torch.__version__} has no torch.cuda.memory.CUDAPluggableAllocator; it came with 2.0")
    return torch, memory


def _torch_allocator(alloc):
    _, memory = _torch_memory()
    allocator = memory.CUDAPluggableAllocator(library().path, alloc, "weir_torch_free")
    inner = allocator.allocator()
    # without the first, Tensor.record_stream would do nothing, and memory would be used again too early
    for hook, function in (("set_record_stream_fn", "weir_torch_record_stream"), ("set_reset_fn", "weir_torch_empty_cache")):
        setter = getattr(inner, hook, None)
        if setter is None:
            if hook == "set_record_stream_fn":
                raise Error("this PyTorch has no hook for Tensor.record_stream, without which side streams corrupt memory")
            continue
        setter(_address(function))
    _kept.append(allocator)
    return allocator


def use_with_torch():
    """Makes weir the allocator of all of PyTorch's GPU memory. Call it before anything is on a GPU.

    Returns the CUDAPluggableAllocator. Out of memory is then a RuntimeError whose message begins with "CUDA out of
    memory". Raises weir.Error if PyTorch is missing, too old, or has allocated already.
    """
    allocator = _torch_allocator("weir_torch_alloc_or_throw")
    _, memory = _torch_memory()
    try:
        memory.change_current_allocator(allocator)
    except RuntimeError as error:
        raise Error(f"PyTorch does not change its allocator any more: {error}; call use_with_torch first") from error
    return allocator


def mem_pool_allocator():
    """A CUDAPluggableAllocator for torch.cuda.MemPool, where PyTorch's own cache stays in front:

        pool = torch.cuda.MemPool(weir.mem_pool_allocator().allocator())
        with torch.cuda.use_mem_pool(pool): ...

    It may be made at any time. Out of memory is torch.OutOfMemoryError. Raises weir.Error.
    """
    return _torch_allocator("weir_torch_alloc")


def _cupy_stream_teller(stream_module, cupy):
    """The address of a C function that tells CuPy's current stream."""
    # CuPy's own function, as its other modules call it; its name has the signature.
    capsule = getattr(stream_module, "__pyx_capi__", {}).get("get_current_stream_ptr")
    if capsule is not None:
        name_of = ctypes.pythonapi.PyCapsule_GetName
        name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
        name = name_of(capsule)
        if name == b"intptr_t (void)":
            pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
            pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
            return pointer_of(capsule, name)
    teller = ctypes.CFUNCTYPE(ctypes.c_void_p)(lambda: cupy.cuda.get_current_stream().ptr)
    _kept.append(teller)
    return ctypes.cast(teller, ctypes.c_void_p).value


def cupy_allocator():
    """A function for cupy.cuda.set_allocator or cupy.cuda.using_allocator, in the order of CuPy's current stream.

    Out of memory is cupy.cuda.memory.OutOfMemoryError. Raises weir.Error if CuPy is missing.
    """
    try:
        import cupy
    except ImportError as error:
        raise Error(f"CuPy cannot be imported: {error}") from error
    from cupy_backends.cuda import stream as stream_module

    own = library()
    teller = _cupy_stream_teller(stream_module, cupy)
    inner = cupy.cuda.memory.CFunctionAllocator(teller, _address("weir_cupy_malloc"), _address("weir_cupy_free"), own)

    def malloc(size):
        block = inner.malloc(size)
        if size > 0 and block.ptr == 0:  # CuPy does not look
            message = own.weir_last_error().decode(errors="replace")
            used = stats(cupy.cuda.runtime.getDevice())["used_bytes"]
            raise cupy.cuda.memory.OutOfMemoryError(size, used) from Error(message)
        return block

    return malloc


def use_with_cupy():
    """Makes weir CuPy's allocator of GPU memory. Arrays that exist already stay where they are. Returns the function."""
    malloc = cupy_allocator()
    import cupy

    cupy.cuda.set_allocator(malloc)
    return malloc
