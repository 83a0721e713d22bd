//! Primary contexts, shared by all pools of a device, and the state of the calling thread that a call must not change.
//!
//! A context is retained when the first backend asks for it and released when the last one leaves it. A context that
//! is lost (a sticky error, or the device was reset) stays lost; who asks for the device's context after that gets
//! another object, which may well be for the same handle: after a reset the driver gives out the same handle anew,
//! under another `cuCtxGetId` (measured on an H100, driver 580).
//!
//! Invariants: `CONTEXTS[device]` is what the next backend gets, unless it is lost; `users` counts the backends that
//! asked. Events are of the context they were created in; once it is lost they are used no more, and once it is gone
//! they are left alone.
//!
//! Locks: `CONTEXTS`, while a context is retained; a context's `named`, for a call of a driver without stream ids; its
//! `events`, for a look at the list. They nest in this order. A context is released under none.

use super::driver::{self, Driver, SUCCESS, insist};
use super::symbols::Code;
use crate::backend::BackendError;
use cuda_driver_sys::{CUcontext, CUdevice, CUevent, CUevent_flags, CUresult, CUstreamCaptureMode};
use rustc_hash::FxHashMap;
use std::ffi::{c_int, c_uint};
use std::ptr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Ordinals that may have a context.
pub(super) const DEVICES: usize = 64;

static CONTEXTS: Mutex<[Option<Arc<Context>>; DEVICES]> = Mutex::new([const { None }; DEVICES]);
static SERIALS: AtomicU64 = AtomicU64::new(0);

/// Takes a lock whose data no panic can leave half changed.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An event that was created in some context; the number of its handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RawEvent(pub usize);

impl RawEvent {
    pub(super) fn handle(self) -> CUevent {
        ptr::with_exposed_provenance_mut(self.0)
    }
}

/// Which context, and whether it is lost. Outlives the context: it gives nothing back when it is dropped.
#[derive(Debug)]
pub(super) struct Identity {
    pub(super) driver: &'static Driver,
    /// The driver's handle of the device.
    pub(super) device: CUdevice,
    /// The device's number.
    pub(super) ordinal: c_int,
    /// The number of the context's handle.
    pub(super) handle: usize,
    /// What `cuCtxGetId` said; None: this driver has no ids.
    id: Option<u64>,
    /// A number that no other context of the process ever has.
    pub(super) serial: u64,
    lost: OnceLock<String>,
}

/// A device's primary context.
#[derive(Debug)]
pub(super) struct Context {
    identity: Arc<Identity>,
    users: AtomicUsize,
    events: Mutex<Vec<RawEvent>>,
    /// For drivers without stream ids: the event behind the work of the last call that named a handle.
    named: Mutex<FxHashMap<usize, RawEvent>>,
    /// Mappings of all pools of the device.
    pub(super) mapped: AtomicU64,
}

/// The primary context of a device, for one more user.
pub(super) fn join(driver: &'static Driver, ordinal: c_int) -> Result<Arc<Context>, BackendError> {
    let device = driver.known_device(ordinal)?;
    let Some(place) = usize::try_from(ordinal).ok().filter(|&place| place < DEVICES) else {
        return Err(BackendError::NotSupported(format!(
            "device {ordinal}: pools know the first {DEVICES}"
        )));
    };
    let mut contexts = lock(&CONTEXTS);
    if let Some(known) = &contexts[place]
        && known.verify().is_ok()
    {
        known.users.fetch_add(1, Ordering::Relaxed);
        return Ok(known.clone());
    }
    let fresh = Arc::new(Context::retain(driver, ordinal, device)?);
    let old = contexts[place].replace(fresh.clone());
    drop(contexts);
    drop(old);
    Ok(fresh)
}

/// One user less.
pub(super) fn leave(context: Arc<Context>) {
    let mut contexts = lock(&CONTEXTS);
    let last = context.users.fetch_sub(1, Ordering::Relaxed) == 1;
    let place = &mut contexts[context.ordinal as usize];
    let mine = place.as_ref().is_some_and(|known| Arc::ptr_eq(known, &context));
    let known = (last && mine).then(|| place.take());
    drop(contexts);
    drop((known, context));
}

/// The contexts that somebody uses now.
pub(super) fn joined() -> Vec<Arc<Context>> {
    lock(&CONTEXTS).iter().flatten().cloned().collect()
}

/// The context of a device, if somebody uses it now.
pub(super) fn of(ordinal: c_int) -> Option<Arc<Context>> {
    let place = usize::try_from(ordinal).ok()?;
    lock(&CONTEXTS).get(place)?.clone()
}

/// The context of a device, for a while: it stays as long as the result, but nobody else finds it through this.
pub(super) fn borrow(driver: &'static Driver, ordinal: c_int) -> Result<Arc<Context>, BackendError> {
    match of(ordinal).filter(|known| known.verify().is_ok()) {
        Some(known) => Ok(known),
        None => {
            let context = join(driver, ordinal)?;
            leave(context.clone());
            Ok(context)
        }
    }
}

/// The same by its handle, which must be that of a primary context.
pub(super) fn primary(driver: &'static Driver, handle: usize) -> Result<Arc<Context>, BackendError> {
    let contexts = lock(&CONTEXTS);
    let known = contexts
        .iter()
        .flatten()
        .find(|context| context.handle == handle)
        .cloned();
    drop(contexts);
    if let Some(known) = known.filter(|known| known.verify().is_ok()) {
        return Ok(known);
    }
    let ordinal = {
        let _current = enter(driver, handle)?;
        let mut device = 0;
        // SAFETY: the variable is ours.
        let code = unsafe { (driver.symbols.ctx_get_device)(&raw mut device) };
        driver.check("cuCtxGetDevice", code)?;
        driver.ordinal(device)?
    };
    let context = borrow(driver, ordinal)?;
    if context.handle == handle {
        return Ok(context);
    }
    Err(BackendError::InvalidStream(format!(
        "it belongs to a context that is not the primary one of device {ordinal}, and no other can be told to last"
    )))
}

/// Is a device's primary context in use by anybody in this process?
pub(super) fn is_active(driver: &Driver, device: CUdevice) -> Result<bool, BackendError> {
    let (mut flags, mut active) = (0, 0);
    // SAFETY: the variables are ours.
    let code = unsafe { (driver.symbols.primary_state)(device, &raw mut flags, &raw mut active) };
    driver.check("cuDevicePrimaryCtxGetState", code)?;
    Ok(active != 0)
}

/// The context that is current on this thread; 0: none.
pub(super) fn current(driver: &Driver) -> Result<usize, BackendError> {
    driver::still_usable()?;
    let mut now: CUcontext = ptr::null_mut();
    // SAFETY: the variable is ours.
    let code = unsafe { (driver.symbols.ctx_get_current)(&raw mut now) };
    driver.check("cuCtxGetCurrent", code)?;
    Ok(now.expose_provenance())
}

/// Has a context current while it lives, and then again what was current before.
#[derive(Debug)]
#[must_use]
pub struct Entered(Option<&'static Driver>);

/// Makes a context current on this thread, unless it is.
pub(super) fn enter(driver: &'static Driver, handle: usize) -> Result<Entered, BackendError> {
    if current(driver)? == handle {
        return Ok(Entered(None));
    }
    // SAFETY: a handle that the driver gave; one of a context that is no more is an error.
    let code = unsafe { (driver.symbols.ctx_push_current)(ptr::with_exposed_provenance_mut(handle)) };
    driver.check("cuCtxPushCurrent", code)?;
    Ok(Entered(Some(driver)))
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some(driver) = self.0
            && driver::usable()
        {
            let mut popped = ptr::null_mut();
            // SAFETY: the variable is ours; what is popped is what `enter` pushed.
            insist(|| unsafe { (driver.symbols.ctx_pop_current)(&raw mut popped) });
        }
    }
}

/// Has this thread in relaxed capture mode while it lives. Without it a query, a synchronise or an allocation would be
/// refused while any thread captures in global mode, or this one in thread-local mode, and would end that capture.
#[must_use]
pub(super) struct Relaxed(Option<(&'static Driver, c_uint)>);

/// Puts this thread into relaxed capture mode.
pub(super) fn relax(driver: &'static Driver) -> Result<Relaxed, BackendError> {
    let Some(exchange) = driver.symbols.thread_exchange_capture_mode else {
        return Ok(Relaxed(None)); // no mode is older than this call
    };
    driver::still_usable()?;
    let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as c_uint;
    // SAFETY: the variable is ours.
    let code = unsafe { exchange(&raw mut mode) };
    driver.check("cuThreadExchangeStreamCaptureMode", code)?;
    Ok(Relaxed(Some((driver, mode))))
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        if let Some((driver, mode)) = self.0
            && let Some(exchange) = driver.symbols.thread_exchange_capture_mode
            && driver::usable()
        {
            insist(|| {
                let mut mode = mode;
                // SAFETY: the variable is ours.
                unsafe { exchange(&raw mut mode) }
            });
        }
    }
}

impl Identity {
    /// What `cuCtxGetId` says; None: this driver has no ids.
    fn ask_id(&self) -> Option<(Code, u64)> {
        let get = self.driver.symbols.ctx_get_id?;
        let mut id = 0;
        // SAFETY: a context that this object retains; the variable is ours.
        let code = unsafe { get(ptr::with_exposed_provenance_mut(self.handle), &raw mut id) };
        Some((code, id))
    }

    /// Has the device been reset, so that nothing of the context is left? Not so after a sticky error.
    pub(super) fn is_gone(&self) -> bool {
        const DESTROYED: Code = CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED as Code;
        match self.ask_id() {
            Some((SUCCESS, id)) => self.id != Some(id),
            Some((code, _)) => code == DESTROYED,
            None => is_active(self.driver, self.device) == Ok(false),
        }
    }

    /// Is this still the context that was retained? Err(Lost) if the device was reset since. To be asked before an event is
    /// named that is not known to be of a context that lives: once the context was retained anew the driver crashes on an old
    /// one. It takes 10 ns where the query of an event takes 150 (H200, driver 580). A reset between this and the call that
    /// follows is not seen, and nothing here could see it: programs that reset a device keep weir from it meanwhile.
    pub(super) fn verify(&self) -> Result<(), BackendError> {
        driver::still_usable()?;
        self.alive()?;
        let there = match self.id {
            Some(known) => {
                let (code, id) = self.ask_id().unwrap_or_default();
                self.check("cuCtxGetId", code)?;
                id == known
            }
            None => is_active(self.driver, self.device).map_err(|error| self.note(error))?,
        };
        match there {
            true => Ok(()),
            false => {
                let why = format!(
                    "device {} was reset, and with it all streams and events",
                    self.ordinal
                );
                let _ = self.lost.set(why);
                self.alive()
            }
        }
    }

    /// Is it current, and known to be still the one that was retained?
    pub(super) fn is_current(&self) -> bool {
        current(self.driver).is_ok_and(|now| now == self.handle)
            && self.lost.get().is_none()
            && self.id.is_some_and(|id| self.ask_id() == Some((SUCCESS, id)))
    }

    /// Err(Lost) if an earlier call has found that the context is.
    #[inline]
    pub(super) fn alive(&self) -> Result<(), BackendError> {
        match self.lost.get() {
            None => Ok(()),
            Some(why) => Err(BackendError::Lost(why.clone())),
        }
    }

    /// What the result of a call in this context means.
    #[inline]
    pub(super) fn check(&self, call: &str, code: Code) -> Result<(), BackendError> {
        match code {
            SUCCESS => Ok(()),
            code => Err(self.note(self.driver.error(call, code))),
        }
    }

    /// Remembers that the context is lost, if that is the error.
    pub(super) fn note(&self, error: BackendError) -> BackendError {
        if let BackendError::Lost(why) = &error {
            let _ = self.lost.set(why.clone());
        }
        error
    }

    /// Makes a call in this context that gives something back, in relaxed mode; once more if it fails, as [`insist`] does,
    /// on the way there, too; not if the context is lost, when what was to be given back is gone.
    pub(super) fn give_back(&self, name: &str, mut call: impl FnMut() -> Code) -> Result<(), BackendError> {
        let mut attempt = || {
            let (_current, _mode) = (self.enter()?, relax(self.driver)?);
            self.check(name, call())
        };
        attempt().or_else(|error| match error {
            BackendError::Lost(_) => Err(error),
            _ if driver::usable() => attempt(),
            _ => Err(error),
        })
    }

    /// Makes it current on this thread.
    pub(super) fn enter(&self) -> Result<Entered, BackendError> {
        enter(self.driver, self.handle).map_err(|error| self.note(error))
    }
}

impl std::ops::Deref for Context {
    type Target = Identity;
    fn deref(&self) -> &Identity {
        &self.identity
    }
}

impl Context {
    fn retain(driver: &'static Driver, ordinal: c_int, device: CUdevice) -> Result<Context, BackendError> {
        let mut handle: CUcontext = ptr::null_mut();
        // SAFETY: the variable is ours.
        let code = unsafe { (driver.symbols.primary_retain)(&raw mut handle, device) };
        driver.check("cuDevicePrimaryCtxRetain", code)?;
        let mut identity = Identity {
            driver,
            device,
            ordinal,
            handle: handle.expose_provenance(),
            id: None,
            serial: SERIALS.fetch_add(1, Ordering::Relaxed),
            lost: OnceLock::new(),
        };
        let answer = identity.ask_id();
        identity.id = answer.map(|(_, id)| id);
        let context = Context {
            identity: Arc::new(identity),
            users: AtomicUsize::new(1),
            events: Mutex::default(),
            named: Mutex::default(),
            mapped: AtomicU64::new(0),
        };
        // an error from here on releases the context
        if let Some((code, _)) = answer {
            context.check("cuCtxGetId", code)?;
        }
        let first = context.event()?; // refused by a context with a sticky error
        context.put_back(first);
        Ok(context)
    }

    /// Which context this is, for who must not keep it.
    pub(super) fn identity(&self) -> Arc<Identity> {
        self.identity.clone()
    }

    /// An event to be recorded.
    pub(super) fn event(&self) -> Result<RawEvent, BackendError> {
        let free = lock(&self.events).pop();
        if let Some(event) = free {
            return Ok(event);
        }
        let mut event: CUevent = ptr::null_mut();
        let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING as c_uint;
        let current = self.enter()?;
        // SAFETY: the variable is ours.
        let code = unsafe { (self.driver.symbols.event_create)(&raw mut event, flags) };
        self.check("cuEventCreate", code)?;
        drop(current);
        driver::still_usable()?;
        Ok(RawEvent(event.expose_provenance()))
    }

    /// Keeps an event for the next who needs one. What it was recorded for may still be running: a wait that was
    /// queued for it stays, and recording it again is fine.
    pub(super) fn put_back(&self, event: RawEvent) {
        lock(&self.events).push(event);
    }

    /// Finds out whether the context is lost.
    pub(super) fn probe(&self) -> Result<(), BackendError> {
        const NOT_READY: Code = CUresult::CUDA_ERROR_NOT_READY as Code;
        self.verify()?;
        let mode = relax(self.driver)?;
        let event = self.event()?;
        // SAFETY: an event of this context, in nobody else's hands.
        let code = unsafe { (self.driver.symbols.event_query)(event.handle()) };
        self.put_back(event);
        if code != NOT_READY {
            self.check("cuEventQuery", code)?;
        }
        drop(mode);
        driver::still_usable()
    }

    /// For drivers without stream ids, in a call that names a stream: orders the work of a stream behind that of an
    /// older one that had the same handle, so that the handle can stand for both.
    pub(super) fn chain(&self, stream: usize) -> Result<(), BackendError> {
        let mut named = lock(&self.named);
        let handle = ptr::with_exposed_provenance_mut(stream);
        let event = match named.get(&stream) {
            Some(&event) => {
                // SAFETY: an event of this context, and the stream of the caller's.
                let code = unsafe { (self.driver.symbols.stream_wait_event)(handle, event.handle(), 0) };
                self.check("cuStreamWaitEvent", code)?;
                event
            }
            None => {
                let event = self.event()?;
                named.insert(stream, event);
                event
            }
        };
        // SAFETY: as above.
        let code = unsafe { (self.driver.symbols.event_record)(event.handle(), handle) };
        self.check("cuEventRecord", code)
    }

    /// Blocks until all work in the context is complete, that of destroyed streams included, without harm to captures:
    /// `cuCtxSynchronize` would end every one of them. The driver completes all work before it gives memory back
    /// (CUDA Runtime API reference, implicit synchronisation), and in relaxed mode captures go on (measured on an
    /// H100, driver 580: in all capture modes, for blocking and non-blocking streams, behind host functions, behind
    /// events of other streams). Giving page-locked memory back waits as well and is the other way, for a card on which
    /// nothing is left. It would be quicker where nothing is running (6 µs; 115 µs for device memory), but is less
    /// well documented, and who waits for everything does so rarely.
    ///
    /// In a context that is lost no work runs any more.
    pub(super) fn drain(&self) -> Result<(), BackendError> {
        if self.alive().is_err() {
            return Ok(());
        }
        let drained = self
            .drain_by_device_memory()
            .or_else(|error| match driver::usable() {
                true => self.drain_by_host_memory(),
                false => Err(error),
            });
        match drained {
            Err(BackendError::Lost(_)) => Ok(()),
            result => result,
        }
    }

    fn drain_by_device_memory(&self) -> Result<(), BackendError> {
        const BYTES: usize = 256;
        let (_current, _mode) = (self.enter()?, relax(self.driver)?);
        let symbols = &self.driver.symbols;
        let mut at = 0;
        // SAFETY: the variable is ours.
        self.check("cuMemAlloc", unsafe { (symbols.mem_alloc)(&raw mut at, BYTES) })?;
        // SAFETY: allocated above, and nobody has heard of it.
        self.check("cuMemFree", insist(|| unsafe { (symbols.mem_free)(at) }))
    }

    fn drain_by_host_memory(&self) -> Result<(), BackendError> {
        const BYTES: usize = 4096;
        let (_current, _mode) = (self.enter()?, relax(self.driver)?);
        let symbols = &self.driver.symbols;
        let mut at = ptr::null_mut();
        // SAFETY: the variable is ours.
        let code = unsafe { (symbols.mem_host_alloc)(&raw mut at, BYTES, 0) };
        self.check("cuMemHostAlloc", code)?;
        // SAFETY: allocated above, and nobody has heard of it.
        self.check("cuMemFreeHost", insist(|| unsafe { (symbols.mem_free_host)(at) }))
    }
}

impl Drop for Context {
    /// Gives events and context back, if there is somebody to give them to.
    fn drop(&mut self) {
        if !driver::usable() {
            return;
        }
        let symbols = &self.driver.symbols;
        if !self.is_gone() {
            let named = std::mem::take(&mut *lock(&self.named));
            let free = std::mem::take(&mut *lock(&self.events));
            for event in free.into_iter().chain(named.into_values()) {
                // SAFETY: created by this object, and in nobody's hands.
                insist(|| unsafe { (symbols.event_destroy)(event.handle()) });
            }
        }
        if driver::usable() {
            // SAFETY: retained by this object.
            insist(|| unsafe { (symbols.primary_release)(self.device) });
        }
    }
}
