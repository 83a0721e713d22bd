//! Graphs that are gone: what the driver tells of them, so that nobody else has to.
//!
//! A capture's graph gets a *user object* (CUDA 11.3). The driver drops it when the graph, all that was instantiated, cloned or
//! made part of another graph from it, and all their launches are over, and when a capture is invalidated; an executable
//! graph that is updated holds that of the graph it was updated to (measured on an H100, driver 580.159.04, 2026-11-21).
//! Its destructor runs on a thread of the driver's, may call nothing there, and here only adds to a list.
//!
//! Invariants: a [`Watch`] belongs to the driver until its destructor runs, then to the list, then to whoever takes it off.
//! A watch holds the list, not the other way round, so a graph may outlive its pool.

use super::driver::{Driver, SUCCESS};
use super::streams::handle;
use crate::backend::BackendError;
use crate::base::units::{CaptureId, StreamHandle};
use cuda_driver_sys::CUstreamCaptureStatus;
use std::ffi::{c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Once};

/// `CUuserObject_flags`, `CUuserObjectRetain_flags`: the destructor waits for nothing; the graph takes over the reference.
const NO_DESTRUCTOR_SYNC: c_uint = 1;
const MOVE: c_uint = 1;

/// The captures of a pool whose graphs are gone and that nobody has asked about yet.
#[derive(Debug, Default)]
pub(super) struct Gone {
    latest: AtomicPtr<Watch>,
}

/// What the driver holds for a capture.
#[derive(Debug)]
struct Watch {
    before: *mut Watch,
    /// 0: the graph never got it.
    capture: u64,
    list: *const Gone,
}

impl Gone {
    /// Sees to it that the end of the graph that `stream` is captured into will be heard of.
    pub(super) fn watch(
        self: &Arc<Gone>,
        driver: &Driver,
        stream: StreamHandle,
        capture: CaptureId,
    ) -> Result<(), BackendError> {
        let symbols = &driver.symbols;
        let (Some(get_graph), Some(create), Some(give), Some(drop)) = (
            symbols.stream_get_capture_graph,
            symbols.user_object_create,
            symbols.graph_retain_user_object,
            symbols.user_object_release,
        ) else {
            return Err(BackendError::NotSupported(format!(
                "a driver for CUDA {} does not tell when a graph is gone; CUDA 11.3 does",
                driver.version()
            )));
        };
        let (mut status, mut id, mut graph) = (0, 0, ptr::null_mut());
        let (none, nothing) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the caller's stream; the variables are ours, and NULL where nothing is asked.
        let code = unsafe {
            get_graph(
                handle(stream),
                &raw mut status,
                &raw mut id,
                &raw mut graph,
                none,
                nothing,
            )
        };
        driver.check("cuStreamGetCaptureInfo", code)?;
        if status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE as c_uint || id != capture.0 {
            return Err(BackendError::Capturing(
                "the capture ended before it was asked for its graph".into(),
            ));
        }
        keep_loaded();
        let watch = Watch::new(self, capture)?;
        let mut object = ptr::null_mut();
        // SAFETY: the variable is ours; the watch lives until its destructor has run.
        let code = unsafe {
            create(
                &raw mut object,
                watch.cast(),
                Some(on_gone),
                1,
                NO_DESTRUCTOR_SYNC,
            )
        };
        if code != SUCCESS {
            // SAFETY: just made, and the driver did not take it.
            unsafe { Watch::end(watch) };
            return driver.check("cuUserObjectCreate", code);
        }
        // SAFETY: the graph of a capture in progress, and an object with one reference.
        let code = unsafe { give(graph, object, 1, MOVE) };
        if code != SUCCESS {
            // SAFETY: the reference is still ours; the destructor runs when it goes, and has nothing to tell.
            unsafe {
                (*watch).capture = 0;
                drop(object, 1);
            }
        }
        driver.check("cuGraphRetainUserObject", code)
    }

    /// Takes the captures off the list.
    pub(super) fn take(&self, each: &mut dyn FnMut(CaptureId)) {
        if self.latest.load(Ordering::Relaxed).is_null() {
            return;
        }
        let mut at = self.latest.swap(ptr::null_mut(), Ordering::Acquire);
        while !at.is_null() {
            // SAFETY: a watch of the list, which is nobody else's since the swap; its hold on the list went before.
            let (before, capture) = unsafe { ((*at).before, (*at).capture) };
            // SAFETY: made by `Watch::new`, and of no more use.
            unsafe { libc::free(at.cast()) };
            each(CaptureId(capture));
            at = before;
        }
    }
}

impl Drop for Gone {
    fn drop(&mut self) {
        self.take(&mut |_| {});
    }
}

impl Watch {
    /// By `malloc`, since it may be needed in a free, which must not end the process for lack of memory.
    fn new(list: &Arc<Gone>, capture: CaptureId) -> Result<*mut Watch, BackendError> {
        // SAFETY: any size may be asked for.
        let watch = unsafe { libc::malloc(size_of::<Watch>()) }.cast::<Watch>();
        if watch.is_null() {
            return Err(BackendError::Other(
                "no memory to watch a graph; the pool keeps the graph's memory until it is told".into(),
            ));
        }
        // SAFETY: memory of that size and more than its alignment, which nobody else knows.
        unsafe {
            watch.write(Watch {
                before: ptr::null_mut(),
                capture: capture.0,
                list: Arc::into_raw(list.clone()),
            });
        }
        Ok(watch)
    }

    /// # Safety
    /// `watch` is of `new`, not on the list, and not used any more.
    unsafe fn end(watch: *mut Watch) {
        // SAFETY: as the caller says.
        unsafe {
            drop(Arc::from_raw((*watch).list));
            libc::free(watch.cast());
        }
    }
}

/// The destructor of a watch's user object.
extern "C" fn on_gone(watch: *mut c_void) {
    let watch = watch.cast::<Watch>();
    // SAFETY: the driver gives what `watch` handed to it, once.
    unsafe {
        if (*watch).capture == 0 {
            return Watch::end(watch);
        }
        let list = Arc::from_raw((*watch).list);
        let mut latest = list.latest.load(Ordering::Relaxed);
        loop {
            (*watch).before = latest;
            // from here on the watch is the list's
            let swapped =
                list.latest
                    .compare_exchange_weak(latest, watch, Ordering::Release, Ordering::Relaxed);
            match swapped {
                Ok(_) => break,
                Err(now) => latest = now,
            }
        }
    }
}

/// The driver may call `on_gone` after a plugin that contains this code was closed: it stays loaded.
fn keep_loaded() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let mut found = std::mem::MaybeUninit::<libc::Dl_info>::uninit();
        let code = on_gone as extern "C" fn(*mut c_void);
        // SAFETY: the address of code, a variable of ours, and the name of a file that is loaded, which stays as it is.
        unsafe {
            if libc::dladdr(code as *const c_void, found.as_mut_ptr()) != 0 {
                let flags = libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
                libc::dlopen(found.assume_init().dli_fname, flags);
            }
        }
    });
}
