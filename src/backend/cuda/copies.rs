//! Copies on the driver's streams, and points in their work that others may wait for.
//!
//! Calls are made in the program's current context, as the program would make them; where none is current, in the
//! stream's own. The driver is opened by them only if the program has loaded it: without it nobody has a stream of it.
//!
//! Locks: those of [`context`], for a look.

use super::captures::{self, Capturing};
use super::context::{self, Context, Entered, RawEvent, relax};
use super::driver::{self, Driver};
use super::streams::{self, handle};
use crate::backend::BackendError;
use crate::backend::staging::{CopyQueue, Moment};
use crate::base::units::{Addr, StreamHandle};
use cuda_driver_sys::{CUcontext, CUresult};
use std::ptr;
use std::sync::{Arc, OnceLock};

/// The driver, if this process has it.
pub fn driver() -> Option<&'static Driver> {
    let known = driver::opened().or_else(|| driver::open_if_loaded().ok());
    known.filter(|_| driver::usable())
}

/// A program's stream that copies are queued on.
#[derive(Debug)]
pub struct Stream {
    driver: &'static Driver,
    named: StreamHandle,
    /// That of the stream's device, once somebody has asked.
    context: OnceLock<Arc<Context>>,
    /// Made current for as long as this lives, if none was.
    _current: Option<Entered>,
}

impl Stream {
    /// Pre: `driver` has given one.
    pub fn new(named: StreamHandle) -> Result<Stream, BackendError> {
        let driver = driver().ok_or(BackendError::Unloaded)?;
        streams::check_handle(named)?;
        let mut stream = Stream {
            driver,
            named,
            context: OnceLock::new(),
            _current: None,
        };
        if context::current(driver)? == 0 {
            stream._current = Some(stream.context()?.enter()?);
        }
        Ok(stream)
    }

    /// Is it being captured? An error if nothing can be queued on it for another stream's capture.
    pub fn is_captured(&self) -> Result<bool, BackendError> {
        match captures::capturing(self.driver, self.named)? {
            Capturing::No => Ok(false),
            Capturing::Into(_) => Ok(true),
            Capturing::ByOther => Err(BackendError::Capturing(
                "a blocking stream is being captured, which the default stream would have to wait for".into(),
            )),
        }
    }

    /// Two numbers that tell it from other streams, as far as this driver can. It is not being captured.
    pub fn identity(&self) -> Result<(u64, u64), BackendError> {
        if streams::is_built_in(self.named) {
            // another one in each context, and after a reset
            let serial = self.context()?.serial;
            return Ok(match self.named.0 {
                streams::PER_THREAD => (serial << 3 | 2, streams::thread()),
                _ => (1, serial),
            });
        }
        let Some(get_id) = self.driver.symbols.stream_get_id else {
            return Ok((3, self.named.0 as u64));
        };
        let mut id = 0;
        // SAFETY: the program's stream; the variable is ours.
        match unsafe { get_id(handle(self.named), &raw mut id) } {
            driver::SUCCESS => Ok((4, id)),
            code => Err(self.driver.stream_error("cuStreamGetId", code)),
        }
    }

    /// Do these numbers tell it from streams that had its handle before?
    pub fn has_identity(&self) -> bool {
        streams::is_built_in(self.named) || self.driver.symbols.stream_get_id.is_some()
    }

    /// The ordinal of its device.
    pub fn device(&self) -> Result<i32, BackendError> {
        Ok(self.context()?.ordinal)
    }

    /// The context of the stream: its device's primary one.
    fn context(&self) -> Result<&Arc<Context>, BackendError> {
        match self.context.get() {
            Some(known) => Ok(known),
            None => {
                let found = self.find_context()?;
                Ok(self.context.get_or_init(|| found))
            }
        }
    }

    fn find_context(&self) -> Result<Arc<Context>, BackendError> {
        let now = context::current(self.driver)?;
        let handle = match self.driver.symbols.stream_get_ctx {
            Some(get) if !streams::is_built_in(self.named) => {
                let mut found: CUcontext = ptr::null_mut();
                // SAFETY: the program's stream; that it is one is the precondition of its call.
                let code = unsafe { get(handle(self.named), &raw mut found) };
                if code != driver::SUCCESS {
                    return Err(self.driver.stream_error("cuStreamGetCtx", code));
                }
                found.expose_provenance()
            }
            _ => now,
        };
        match handle {
            // what a default stream is without a context, pools of device 0 know it as
            0 => context::borrow(self.driver, 0),
            handle => context::primary(self.driver, handle),
        }
    }
}

/// What the driver knows of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// Nothing: it is the host's, and not page-locked.
    Pageable,
    /// It is the host's, and the device reaches it.
    Pinned,
    /// It is a device's.
    Device,
}

/// What the driver knows of an address.
pub fn known(at: Addr) -> Result<Known, BackendError> {
    const HOST: u32 = 1;
    let driver = driver().ok_or(BackendError::Unloaded)?;
    let (mut memory_type, mut kind) = (2u32, 0u32);
    let mut values = [(&raw mut kind).cast()];
    // For an address that the driver does not know this call says 0, and cuPointerGetAttribute fails: on an H100 (driver
    // 580.159.04, 2026-11-22) in 0.2 us and in 1.2.
    // SAFETY: the variables are ours, and of the size that this attribute has; any number may be asked for.
    let code = unsafe {
        (driver.symbols.pointer_get_attributes)(1, &raw mut memory_type, values.as_mut_ptr(), at.0)
    };
    driver.check("cuPointerGetAttributes", code)?;
    Ok(match kind {
        0 => Known::Pageable,
        HOST => Known::Pinned,
        _ => Known::Device,
    })
}

impl CopyQueue for Stream {
    fn copy(&self, to: Addr, from: Addr, bytes: u64) -> Result<(), BackendError> {
        // SAFETY: the program's memory and stream, or slots of weir's; that they are such is the precondition of its call.
        let code =
            unsafe { (self.driver.symbols.mem_copy_async)(to.0, from.0, bytes as usize, handle(self.named)) };
        match code {
            driver::SUCCESS => Ok(()),
            code => Err(self
                .driver
                .stream_error(&format!("cuMemcpyAsync of {bytes} B"), code)),
        }
    }

    fn moment(&self) -> Result<Arc<dyn Moment>, BackendError> {
        let context = self.context()?;
        let recorded = Recorded {
            event: context.event()?,
            context: context.clone(),
        };
        // SAFETY: an event of the stream's context that nobody else has, and the program's stream.
        let code = unsafe { (self.driver.symbols.event_record)(recorded.event.handle(), handle(self.named)) };
        match code {
            driver::SUCCESS => Ok(Arc::new(recorded)),
            code => Err(self.driver.stream_error("cuEventRecord", code)),
        }
    }

    fn may_wait(&self) -> Result<(), BackendError> {
        self.context().map(drop) // of others than primary contexts there are no moments
    }
}

/// A point in the work of a stream. It outlives the stream.
#[derive(Debug)]
struct Recorded {
    event: RawEvent,
    context: Arc<Context>,
}

impl Moment for Recorded {
    fn is_over(&self) -> bool {
        const NOT_READY: u32 = CUresult::CUDA_ERROR_NOT_READY as u32;
        match self.context.verify() {
            Ok(()) => {}
            Err(BackendError::Lost(_) | BackendError::Unloaded) => return true, // nothing runs any more
            Err(_) => return false,                                             // it will be asked again
        }
        let Ok(_mode) = relax(self.context.driver) else {
            return !driver::usable();
        };
        // SAFETY: an event of ours that was recorded.
        let code = unsafe { (self.context.driver.symbols.event_query)(self.event.handle()) };
        match code {
            driver::SUCCESS => true,
            NOT_READY => false,
            code => match self.context.check("cuEventQuery", code) {
                Err(BackendError::Lost(_) | BackendError::Unloaded) => true,
                _ => false, // it will be asked again
            },
        }
    }

    fn wait(&self) -> Result<(), BackendError> {
        let synchronize = || {
            self.context.verify()?;
            let _mode = relax(self.context.driver)?;
            driver::still_usable()?;
            // SAFETY: as above.
            let code = unsafe { (self.context.driver.symbols.event_synchronize)(self.event.handle()) };
            self.context.check("cuEventSynchronize", code)
        };
        // it is not asked before whether it is over: who waits for what has just been queued would be told no. What fails
        // twice would fail for ever
        if synchronize().is_err() && !self.is_over() {
            synchronize()?;
        }
        driver::still_usable()?;
        self.context.alive()
    }

    fn move_on(&self, stream: StreamHandle) -> bool {
        let record = self.context.driver.symbols.event_record;
        // SAFETY: an event of ours, of the context of this stream, which is the program's.
        driver::usable() && unsafe { record(self.event.handle(), handle(stream)) } == driver::SUCCESS
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        if driver::usable() {
            self.context.put_back(self.event);
        }
    }
}
