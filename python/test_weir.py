"""Tests of weir.py without PyTorch and CuPy: stand-ins take what it hands over, and call the library as they would.

WEIR_TEST_PREFIX is where weir is installed.
"""

import ctypes
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

PREFIX = os.environ["WEIR_TEST_PREFIX"]
LIBRARY = os.path.realpath(os.path.join(PREFIX, "lib", "libweir.so.0"))
HERE = os.path.dirname(os.path.abspath(__file__))


def load(path=os.path.join(HERE, "weir.py")):
    """The module, fresh."""
    spec = importlib.util.spec_from_file_location("weir", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Finding(unittest.TestCase):
    """Each place where the library may be, and none."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        keep = {"PATH": os.environ.get("PATH", ""), "PKG_CONFIG_LIBDIR": self.folder}
        patch = mock.patch.dict(os.environ, keep, clear=True)
        patch.start()
        self.addCleanup(patch.stop)

    def module_at(self, *parts):
        path = os.path.join(self.folder, *parts)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        shutil.copy(os.path.join(HERE, "weir.py"), path)
        return load(path)

    def library_at(self, *parts):
        path = os.path.join(self.folder, *parts)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(LIBRARY, path)
        return path

    def test_the_environment_comes_first(self):
        weir = self.module_at("a", "weir.py")
        self.library_at("a", "libweir.so.0")
        os.environ["WEIR_LIBRARY"] = LIBRARY
        self.assertEqual(weir.library_path(), LIBRARY)

    def test_a_path_that_does_not_exist_is_named(self):
        os.environ["WEIR_LIBRARY"] = "/nowhere/libweir.so"
        weir = load()
        with self.assertRaisesRegex(weir.Error, "/nowhere/libweir.so, and there is no such file"):
            weir.library_path()

    def test_beside_the_module(self):
        weir = self.module_at("a", "weir.py")
        path = self.library_at("a", "libweir.so")
        self.assertEqual(weir.library_path(), path)

    def test_in_the_prefix_of_the_module(self):
        weir = self.module_at("prefix", "share", "weir", "python", "weir.py")
        path = self.library_at("prefix", "lib", "libweir.so.0")
        self.assertEqual(weir.library_path(), path)

    def test_in_the_prefix_that_the_module_is_a_link_into(self):
        self.module_at("prefix", "share", "weir", "python", "weir.py")
        path = self.library_at("prefix", "lib", "libweir.so.0")
        link = os.path.join(self.folder, "weir.py")
        os.symlink(os.path.join(self.folder, "prefix", "share", "weir", "python", "weir.py"), link)
        self.assertEqual(os.path.realpath(load(link).library_path()), os.path.realpath(path))

    def test_the_installed_module_finds_its_library(self):
        weir = load(os.path.join(PREFIX, "share", "weir", "python", "weir.py"))
        self.assertEqual(os.path.realpath(weir.library_path()), LIBRARY)
        self.assertEqual(weir.stats(weir.HOST)["frees"], weir.stats(weir.HOST)["allocations"])

    def test_by_pkg_config(self):
        weir = self.module_at("a", "b", "c", "d", "weir.py")
        os.environ["PKG_CONFIG_PATH"] = os.path.join(PREFIX, "lib", "pkgconfig")
        self.assertEqual(os.path.realpath(weir.library_path()), LIBRARY)

    def test_by_pkg_config_in_a_folder_with_blanks(self):
        weir = self.module_at("a", "b", "c", "d", "weir.py")
        packages = os.path.join(self.folder, "it's a prefix", "lib", "pkgconfig")
        os.makedirs(packages)
        shutil.copy(os.path.join(PREFIX, "lib", "pkgconfig", "weir.pc"), packages)
        self.library_at("it's a prefix", "lib", "libweir.so.0")
        os.environ["PKG_CONFIG_PATH"] = packages
        self.assertEqual(os.path.realpath(weir.library_path()), LIBRARY)

    def found_by_the_loader(self, **environment):
        """What a process that has no weir yet finds, and how it ends."""
        self.module_at("a", "b", "c", "d", "weir.py")
        code = "import sys; sys.path.insert(0, sys.argv[1]); import weir; print(weir.library().path)"
        command = [sys.executable, "-B", "-c", code, os.path.join(self.folder, "a", "b", "c", "d")]
        environment = dict(os.environ, **environment)
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        return done.returncode, done.stdout.decode().strip()

    def test_by_the_loader(self):
        found = self.found_by_the_loader(LD_LIBRARY_PATH=os.path.join(PREFIX, "lib"))
        self.assertEqual(found, (0, "libweir.so.0"))

    def test_nowhere_says_where_it_looked(self):
        status, said = self.found_by_the_loader()
        self.assertNotEqual(status, 0)
        self.assertRegex(said, "weir.Error: libweir.so.0 was not found: not beside .*pkg-config.*WEIR_LIBRARY")

    def test_another_library_is_refused(self):
        weir = load()
        with open("/proc/self/maps", encoding="utf-8") as maps:
            os.environ["WEIR_LIBRARY"] = next(line.split()[-1] for line in maps if "libc.so.6" in line)
        with self.assertRaisesRegex(weir.Error, "is not a weir that this module knows"):
            weir.library()

    def test_a_file_that_is_no_library_is_refused(self):
        weir = load()
        os.environ["WEIR_LIBRARY"] = os.path.join(HERE, "weir.py")
        with self.assertRaisesRegex(weir.Error, "cannot be opened"):
            weir.library()


class WithLibrary(unittest.TestCase):
    def setUp(self):
        patch = mock.patch.dict(os.environ, {"WEIR_LIBRARY": LIBRARY})
        patch.start()
        self.addCleanup(patch.stop)
        self.weir = load()


class Stats(WithLibrary):
    def test_the_struct_is_that_of_the_header(self):
        with open(os.path.join(PREFIX, "include", "weir.h"), encoding="utf-8") as file:
            struct = re.search(r"typedef struct \{([^}]*)\} weir_pool_stats;", file.read()).group(1)
        fields = re.findall(r"^  (size_t|uint64_t|double) (\w+);", struct, re.MULTILINE)
        kinds = {"size_t": ctypes.c_size_t, "uint64_t": ctypes.c_uint64, "double": ctypes.c_double}
        self.assertEqual([(name, kinds[kind]) for kind, name in fields], list(self.weir._Stats._fields_))

    def test_they_add_up(self):
        library = self.weir.library()
        before = self.weir.stats(self.weir.HOST)
        block = library.weir_torch_alloc(1 << 20, self.weir.HOST, None)
        after = self.weir.stats(self.weir.HOST)
        self.assertEqual(after["allocations"], before["allocations"] + 1)
        self.assertGreaterEqual(after["used_bytes"], before["used_bytes"] + (1 << 20))
        parts = ("used_bytes", "cached_bytes", "free_bytes", "pending_bytes", "idle_bytes")
        self.assertEqual(after["reserved_bytes"], sum(after[part] for part in parts))
        self.assertIsInstance(after["fragmentation"], float)
        library.weir_torch_free(block, 1 << 20, self.weir.HOST, None)

    def test_an_error_has_status_and_message(self):
        with self.assertRaisesRegex(self.weir.Error, "WEIR_ERROR_INVALID_ARGUMENT: weir_device_get_pool: device -2") as caught:
            self.weir.stats(-2)
        self.assertEqual(caught.exception.status, 1)

    def test_a_device_is_a_whole_number_of_32_bits(self):
        for number in (1 << 32, (1 << 32) - 1, 1 << 70, -(1 << 33)):
            with self.assertRaisesRegex(self.weir.Error, f"device {number} does not exist"):
                self.weir.stats(number)
        for wrong in ("-1", -1.9, 0.5):
            with self.assertRaises(TypeError):
                self.weir.squeeze(wrong)

    def test_all_that_is_public_is_exported(self):
        own = {name for name, it in vars(self.weir).items() if getattr(it, "__module__", "") == self.weir.__name__}
        self.assertEqual({name for name in own if not name.startswith("_")} - set(self.weir.__all__), set())

    def test_squeeze_gives_everything_back(self):
        pointer, host = ctypes.c_void_p(), self.weir.HOST
        pool, lib = self.weir._pool(host), self.weir.library()
        lib.weir_pool_alloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)]
        lib.weir_pool_free.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        self.assertEqual(lib.weir_pool_alloc(pool, 5 << 20, None, ctypes.byref(pointer)), 0)
        self.assertEqual(lib.weir_pool_free(pool, pointer, None), 0)
        held = self.weir.stats(host)["reserved_bytes"]
        self.assertGreaterEqual(held, 5 << 20)
        self.assertEqual(self.weir.squeeze(host), held)
        self.assertEqual(self.weir.stats(host)["reserved_bytes"], 0)
        with self.assertRaises(self.weir.Error):
            self.weir.squeeze(-2)


class Torch(WithLibrary):
    """A stand-in for the part of torch.cuda that is called."""

    def install(self, hooks=("set_record_stream_fn", "set_reset_fn"), taken=False):
        self.hooked, self.changed, self.made = {}, [], []
        test = self

        class Inner:
            pass

        for hook in hooks:
            setattr(Inner, hook, staticmethod(lambda address, hook=hook: test.hooked.__setitem__(hook, address)))

        class CUDAPluggableAllocator:
            def __init__(self, path, alloc, free):
                test.made.append((path, alloc, free))
                loaded = ctypes.CDLL(path)
                test.functions = getattr(loaded, alloc), getattr(loaded, free)

            def allocator(self):
                return Inner()

        def change(allocator):
            if taken:
                raise RuntimeError("Can't swap an already initialized allocator")
            self.changed.append(allocator)

        torch = types.ModuleType("torch")
        torch.__version__ = "0"
        torch.cuda = types.SimpleNamespace(
            memory=types.SimpleNamespace(CUDAPluggableAllocator=CUDAPluggableAllocator, change_current_allocator=change),
            is_available=lambda: True,
            current_device=lambda: self.weir.HOST,
        )
        patch = mock.patch.dict(sys.modules, torch=torch)
        patch.start()
        self.addCleanup(patch.stop)

    def test_all_of_pytorch(self):
        self.install()
        allocator = self.weir.use_with_torch()
        self.assertEqual(self.changed, [allocator])
        self.assertEqual(self.made, [(LIBRARY, "weir_torch_alloc_or_throw", "weir_torch_free")])
        library = self.weir.library()
        for hook, name in (("set_record_stream_fn", "weir_torch_record_stream"), ("set_reset_fn", "weir_torch_empty_cache")):
            self.assertEqual(self.hooked[hook], ctypes.cast(getattr(library, name), ctypes.c_void_p).value)
        self.assertIn("used_bytes", self.weir.stats())  # of the current device

    def test_a_mem_pool_gets_null(self):
        self.install()
        self.weir.mem_pool_allocator()
        self.assertEqual(self.made, [(LIBRARY, "weir_torch_alloc", "weir_torch_free")])
        self.assertEqual(self.changed, [])
        self.assertIn("set_record_stream_fn", self.hooked)

    def test_too_late(self):
        self.install(taken=True)
        with self.assertRaisesRegex(self.weir.Error, "already initialized.*use_with_torch first"):
            self.weir.use_with_torch()

    def test_without_the_record_stream_hook_it_is_refused(self):
        self.install(hooks=("set_reset_fn",))
        with self.assertRaisesRegex(self.weir.Error, "record_stream"):
            self.weir.use_with_torch()
        self.assertEqual(self.changed, [])

    def test_missing_or_too_old(self):
        with mock.patch.dict(sys.modules, torch=None):
            with self.assertRaisesRegex(self.weir.Error, "PyTorch cannot be imported"):
                self.weir.use_with_torch()
        self.install()
        del sys.modules["torch"].cuda.memory.CUDAPluggableAllocator
        with self.assertRaisesRegex(self.weir.Error, "came with 2.0"):
            self.weir.use_with_torch()


class Cupy(WithLibrary):
    """A stand-in for the part of CuPy that is called, on host memory."""

    def install(self, capsule_name=None):
        self.set, self.asked = [], 0
        test = self

        class Memory:
            def __init__(self, allocator, size):
                self.allocator, self.ptr = allocator, allocator.alloc(allocator.param, size, test.weir.HOST) or 0

            def __del__(self):
                if self.ptr:
                    self.allocator.free(self.allocator.param, self.ptr, test.weir.HOST)

        class CFunctionAllocator:
            def __init__(self, param, malloc, free, owner):
                pointer = ctypes.c_void_p
                self.param = param
                self.alloc = ctypes.CFUNCTYPE(pointer, pointer, ctypes.c_size_t, ctypes.c_int)(malloc)
                self.free = ctypes.CFUNCTYPE(None, pointer, pointer, ctypes.c_int)(free)

            def malloc(self, size):
                return Memory(self, size)

        class OutOfMemoryError(MemoryError):
            def __init__(self, size, total, limit=0):
                super().__init__(size, total)

        def current():
            self.asked += 1
            return types.SimpleNamespace(ptr=0)

        cupy = types.ModuleType("cupy")
        cupy.cuda = types.SimpleNamespace(
            memory=types.SimpleNamespace(CFunctionAllocator=CFunctionAllocator, OutOfMemoryError=OutOfMemoryError),
            set_allocator=self.set.append,
            get_current_stream=current,
            runtime=types.SimpleNamespace(getDevice=lambda: self.weir.HOST),
        )
        backends, cuda, stream = (types.ModuleType(name) for name in ("cupy_backends", "cupy_backends.cuda", "stream"))
        cuda.stream = stream
        if capsule_name is not None:
            self.function = ctypes.CFUNCTYPE(ctypes.c_void_p)(lambda: current().ptr)
            new = ctypes.pythonapi.PyCapsule_New
            new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
            self.name = ctypes.c_char_p(capsule_name)
            address = ctypes.cast(self.function, ctypes.c_void_p).value
            stream.__pyx_capi__ = {"get_current_stream_ptr": new(address, self.name, None)}
            self.address = address
        modules = {"cupy": cupy, "cupy_backends": backends, "cupy_backends.cuda": cuda, "cupy_backends.cuda.stream": stream}
        patch = mock.patch.dict(sys.modules, modules)
        patch.start()
        self.addCleanup(patch.stop)
        return cupy

    def use(self):
        before = self.weir.stats()
        malloc = self.weir.use_with_cupy()
        self.assertEqual(self.set, [malloc])
        blocks = [malloc(1000 * n) for n in range(1, 50)]
        self.assertEqual(len({block.ptr for block in blocks}), 49)
        self.assertEqual(self.weir.stats()["allocations"], before["allocations"] + 49)
        self.assertEqual(self.asked, 49)
        del blocks
        self.assertEqual(self.asked, 98)
        after = self.weir.stats()
        self.assertEqual(after["allocations"], after["frees"])
        return malloc

    def test_the_current_stream_by_cupys_own_function(self):
        self.install(b"intptr_t (void)")
        self.use()

    def test_the_current_stream_by_python(self):
        self.install()
        self.use()

    def test_a_function_of_another_signature_is_not_called(self):
        self.install(b"intptr_t (int __pyx_skip_dispatch)")
        teller = self.weir._cupy_stream_teller(sys.modules["cupy_backends.cuda"].stream, sys.modules["cupy"])
        self.assertNotEqual(teller, self.address)
        self.use()

    def test_out_of_memory_is_cupys_error(self):
        cupy = self.install()
        malloc = self.weir.use_with_cupy()
        with self.assertRaises(cupy.cuda.memory.OutOfMemoryError) as caught:
            malloc(1 << 60)
        self.assertRegex(str(caught.exception.__cause__), "weir_cupy_malloc")
        self.assertNotEqual(malloc(1000).ptr, 0)

    def test_missing(self):
        with mock.patch.dict(sys.modules, cupy=None):
            with self.assertRaisesRegex(self.weir.Error, "CuPy cannot be imported"):
                self.weir.use_with_cupy()


if __name__ == "__main__":
    unittest.main()
