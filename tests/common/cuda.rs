//! The CUDA backend on the stand-in driver, and small things that the tests of it do to memory and streams.

use super::standin::{Object, ok};
use std::sync::Arc;
use weir::backend::cuda::{self, CudaBackend, Options};
use weir::backend::{Backend, BackendError};
use weir::base::units::{Addr, StreamHandle, Timeline};
use weir::config::{Config, MemoryKind};

/// The granularity of the stand-in's devices.
pub const G: u64 = 2 << 20;
pub const LEGACY: StreamHandle = StreamHandle(0);
pub const PER_THREAD: StreamHandle = StreamHandle(2);

/// Mapped memory of device 0, without extras.
pub fn options() -> Options {
    Options {
        device: 0,
        place: cuda::Place::Device,
        plain: false,
        gpu_direct_rdma: false,
        handle_types: 0,
    }
}

/// Whose memory a pool's backend has.
pub fn place_of(config: &Config) -> cuda::Place {
    match config.memory {
        MemoryKind::Pinned => cuda::Place::Host(None),
        _ => cuda::Place::Device,
    }
}

pub fn try_backend(options: Options) -> Result<Arc<CudaBackend>, BackendError> {
    CudaBackend::new(cuda::open().expect("the stand-in"), options)
}

pub fn backend() -> Arc<CudaBackend> {
    try_backend(options()).expect("a backend")
}

pub fn handle(stream: Object) -> StreamHandle {
    StreamHandle(stream.expose_provenance())
}

pub fn line(b: &CudaBackend, stream: StreamHandle) -> Timeline {
    b.timeline(stream).expect("a timeline")
}

/// A stream kept busy until the gate is opened.
pub struct Gate(Arc<std::sync::atomic::AtomicBool>);

unsafe extern "C" fn stand(arg: *mut std::ffi::c_void) {
    // SAFETY: the count that `Gate::on` gave away.
    let open = unsafe { Arc::from_raw(arg.cast::<std::sync::atomic::AtomicBool>()) };
    while !open.load(std::sync::atomic::Ordering::Acquire) {
        std::thread::yield_now();
    }
}

impl Gate {
    pub fn on(stream: Object) -> Gate {
        let gate = Gate(Arc::default());
        let arg = Arc::into_raw(gate.0.clone()).cast_mut().cast();
        ok!(launch_function(stream, stand, arg));
        gate
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Release);
    }
}

pub fn byte_at(at: u64) -> u8 {
    let mut byte = 0u8;
    ok!(copy_to_host((&raw mut byte).cast(), at, 1));
    byte
}

pub fn fill(at: Addr, value: u8, bytes: u64, stream: Object) {
    ok!(fill(at.0, value, bytes as usize, stream));
}
