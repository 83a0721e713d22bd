//! Streams as calls name them: whose they are, who they are, and whether work queued on them goes into a graph.
//!
//! NULL and 1 are the legacy default stream, 2 the calling thread's own, each of the context that is current, or of the
//! pool's device if none is. They get identities made here, with [`BUILT_IN`] set: one for the legacy stream of each
//! context, one for each thread's stream in each context. Other streams have the driver's `cuStreamGetId`; drivers
//! before CUDA 12.0 have none, and there a handle's number and its context's place stand for all streams that ever have
//! that handle in that context, which are put in order by [`Context::chain`].
//!
//! A stream that is being captured may be asked for nothing but its capture: any other call that names it ends the
//! capture, in every capture mode (measured on an H100, driver 580), and so does one that names the legacy stream while
//! a blocking stream of its context is captured. While it is captured its handle makes its identity, with [`CAPTURED`]
//! set; it is only ever looked at together with the capture's.
//!
//! Streams of other devices may be named as well, if they belong to the device's primary context: these contexts are
//! joined when they are first seen, and left when the pool ends. Streams of contexts that a program made itself are
//! refused, because nobody could tell when such a context ends.
//!
//! Once the pool has ended nothing more may be asked of its contexts. They are left when the last event is back: a call that was under
//! way may have recorded one.
//!
//! Locks: `contexts`, for a look at the list or to add to it.

use super::captures::{self, Capturing};
use super::context::{self, Context, Entered, Identity, RawEvent, enter};
use super::driver::{self, Driver, SUCCESS};
use super::symbols::Code;
use crate::backend::{BackendError, process};
use crate::base::units::{StreamHandle, StreamId, Timeline, is_own_handle};
use cuda_driver_sys::{CUcontext, CUresult, CUstream, CUstream_flags};
use std::cell::Cell;
use std::ffi::c_uint;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// Identities that are not the driver's.
const BUILT_IN: u64 = 1 << 63;
const CAPTURED: u64 = 1 << 62;
/// The identity of the host, which is no stream's.
pub(super) const HOST: StreamId = StreamId(u64::MAX);
/// Contexts that one pool can know: the bits left in an event's number.
const CONTEXTS: usize = 255;
/// Where a context's place stands in the identity of a stream that the driver has no id for. Handles are addresses of user space, which
/// are shorter.
const PLACE: u32 = 54;

pub(super) const LEGACY: usize = 1;
pub(super) const PER_THREAD: usize = 2;

/// Is this one of the driver's own streams, which no program can destroy?
pub(super) fn is_built_in(stream: StreamHandle) -> bool {
    matches!(stream.0, 0 | LEGACY | PER_THREAD)
}

/// The legacy stream of the context of that number.
fn legacy(serial: u64) -> StreamId {
    StreamId(BUILT_IN | serial << 32)
}

/// The calling thread's own.
fn of_thread(serial: u64) -> StreamId {
    StreamId(BUILT_IN | serial << 32 | thread())
}

static LAST_THREAD: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// This thread's number; 0: none yet.
    static THREAD: Cell<u64> = const { Cell::new(0) };
}

/// So many streams that are named in turn need not be looked at anew, if their identities follow each other.
const LATEST: usize = 64;

/// What is known of a stream: | identity 62 | one of these 2 |. 0: nothing.
const KNOWN: u32 = 2;
/// It is fit for the table's pool.
const FIT: u64 = 1;
/// The same, and it waits for no other stream by itself.
const APART: u64 = 2;
/// The same, and it waits for the legacy stream.
const TIED: u64 = 3;
const KIND: u64 = 3;

pub(super) fn thread() -> u64 {
    THREAD.with(|number| {
        if number.get() == 0 {
            number.set(LAST_THREAD.fetch_add(1, Ordering::Relaxed) + 1);
        }
        number.get()
    })
}

/// The contexts whose streams a pool knows; the first is that of its own device.
#[derive(Debug)]
pub(super) struct Streams {
    driver: &'static Driver,
    own: Arc<Identity>,
    contexts: RwLock<Vec<Arc<Context>>>,
    closed: AtomicBool,
    /// Events that are out, and calls that are about to record one.
    out: AtomicUsize,
    /// Streams of late, by the low bits of their identities. These are never used twice, so what was found out about one holds.
    latest: [AtomicU64; LATEST],
}

/// A stream that work may be queued on, with its context, which is current for as long as that matters.
pub(super) struct Usable {
    pub(super) stream: CUstream,
    pub(super) context: Arc<Context>,
    pub(super) place: usize,
    _current: Option<Entered>,
}

impl Streams {
    pub(super) fn new(own: Arc<Context>) -> Streams {
        Streams {
            driver: own.driver,
            own: own.identity(),
            contexts: RwLock::new(vec![own]),
            closed: AtomicBool::new(false),
            out: AtomicUsize::new(0),
            latest: [const { AtomicU64::new(0) }; LATEST],
        }
    }

    /// The context at a place; None once all have been left.
    pub(super) fn context(&self, place: usize) -> Option<Arc<Context>> {
        let contexts = self.contexts.read().unwrap_or_else(PoisonError::into_inner);
        contexts.get(place).cloned()
    }

    /// The pool's own context.
    pub(super) fn own(&self) -> Result<Arc<Context>, BackendError> {
        let open = !self.closed.load(Ordering::SeqCst);
        open.then(|| self.context(0))
            .flatten()
            .ok_or(BackendError::Unloaded)
    }

    /// Is the pool's own context lost?
    pub(super) fn is_lost(&self) -> bool {
        self.own.alive().is_err()
    }

    /// All contexts known.
    pub(super) fn contexts(&self) -> Vec<Arc<Context>> {
        let contexts = self.contexts.read().unwrap_or_else(PoisonError::into_inner);
        contexts.clone()
    }

    /// An event behind what is queued on a stream, and the place of its context, which stays until the event is back.
    pub(super) fn record(&self, stream: StreamHandle) -> Result<(RawEvent, usize), BackendError> {
        self.out.fetch_add(1, Ordering::SeqCst); // before `closed` is looked at
        let recorded = self.record_open(stream);
        if recorded.is_err() {
            self.take_back();
        }
        recorded
    }

    fn record_open(&self, stream: StreamHandle) -> Result<(RawEvent, usize), BackendError> {
        driver::still_usable()?;
        self.own()?.alive()?;
        let named = self.usable(stream)?;
        let event = named.context.event()?;
        // SAFETY: an event of the stream's context that nobody else has, and the caller's stream.
        let code = unsafe { (self.driver.symbols.event_record)(event.handle(), named.stream) };
        if let Err(error) = self.check("cuEventRecord", code) {
            named.context.put_back(event);
            return Err(error);
        }
        Ok((event, named.place))
    }

    /// An event is back, or was not recorded.
    pub(super) fn take_back(&self) {
        if self.out.fetch_sub(1, Ordering::SeqCst) == 1 && self.closed.load(Ordering::SeqCst) {
            self.leave();
        }
    }

    /// The pool has ended.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        if self.out.load(Ordering::SeqCst) == 0 {
            self.leave();
        }
    }

    /// Leaves all contexts. In a forked child locks may be held for ever, and nothing is left to do.
    fn leave(&self) {
        if process::forked() {
            return;
        }
        let contexts = {
            let mut contexts = self.contexts.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *contexts)
        };
        contexts.into_iter().for_each(context::leave);
    }

    /// The place of a context, which is joined if it was not known yet.
    fn place(&self, handle: usize) -> Result<(usize, Arc<Context>), BackendError> {
        let known = |contexts: &[Arc<Context>]| {
            let found = contexts
                .iter()
                .enumerate()
                .rev()
                .find(|(_, context)| context.handle == handle);
            found.map(|(place, context)| (place, context.clone()))
        };
        let contexts = self.contexts.read().unwrap_or_else(PoisonError::into_inner);
        if contexts.is_empty() || self.closed.load(Ordering::SeqCst) {
            return Err(BackendError::Unloaded);
        }
        // a device that was reset has its old handle again, but the pool's own memory went with the old context
        if let Some(found) = known(&contexts)
            && (found.0 == 0 || found.1.alive().is_ok())
        {
            return Ok(found);
        }
        drop(contexts);
        let joined = self.join(handle)?;
        let mut contexts = self.contexts.write().unwrap_or_else(PoisonError::into_inner);
        if contexts.is_empty() || contexts.len() >= CONTEXTS {
            drop(contexts);
            context::leave(joined);
            return Err(BackendError::NotSupported(
                "a pool knows no more than 255 contexts".into(),
            ));
        }
        contexts.push(joined.clone());
        Ok((contexts.len() - 1, joined))
    }

    /// Joins a context that must be its device's primary one.
    fn join(&self, handle: usize) -> Result<Arc<Context>, BackendError> {
        let ordinal = {
            let _current = enter(self.driver, handle)?;
            let mut device = 0;
            // SAFETY: the variable is ours.
            let code = unsafe { (self.driver.symbols.ctx_get_device)(&raw mut device) };
            self.driver.check("cuCtxGetDevice", code)?;
            self.driver.ordinal(device)?
        };
        driver::still_usable()?;
        let primary = context::join(self.driver, ordinal)?;
        if primary.handle == handle {
            return Ok(primary);
        }
        context::leave(primary);
        Err(BackendError::InvalidStream(format!(
            "it belongs to a context that is not the primary one of device {ordinal}; pools know streams of primary \
             contexts only"
        )))
    }

    /// Who is this, and what does its work go into?
    pub(super) fn timeline(&self, stream: StreamHandle) -> Result<Timeline, BackendError> {
        match stream.0 {
            _ if stream == StreamHandle::HOST => self.own.alive().map(|()| Timeline::of(HOST)),
            0 | LEGACY => {
                let serial = self.built_in()?.0;
                Ok(Timeline::of(legacy(serial)))
            }
            PER_THREAD => {
                let (serial, _current) = self.built_in()?;
                let id = of_thread(serial);
                let capture = match self.capturing(stream)? {
                    Capturing::Into(capture) => Some(capture),
                    Capturing::No | Capturing::ByOther => None,
                };
                Ok(Timeline { stream: id, capture })
            }
            _ => self.ordinary(stream),
        }
    }

    fn ordinary(&self, stream: StreamHandle) -> Result<Timeline, BackendError> {
        self.known(stream).map(|known| known.0)
    }

    /// What `cuStreamGetId` says of a stream that is not being captured; None: this driver has no ids.
    #[inline]
    fn ask_id(&self, stream: StreamHandle) -> Option<(Code, u64)> {
        let get_id = self.driver.symbols.stream_get_id?;
        let mut id = 0;
        // SAFETY: the caller's stream; the variable is ours.
        let code = unsafe { get_id(handle(stream), &raw mut id) };
        Some((code, id))
    }

    /// Is it still that stream, and captured as little as it was? What was found out about an identity holds, so of most streams the driver's
    /// answers are all there is to it.
    pub(super) fn is_still(&self, stream: StreamHandle, line: Timeline) -> bool {
        let quick = match stream.0 {
            0 | LEGACY => self.own.is_current().then(|| legacy(self.own.serial)),
            PER_THREAD => (self.own.is_current() && captures::is_none(self.driver, stream))
                .then(|| of_thread(self.own.serial)),
            _ if is_own_handle(stream.0) || !captures::is_none(self.driver, stream) => None,
            _ => self
                .ask_id(stream)
                .and_then(|(code, id)| (code == SUCCESS).then_some(StreamId(id))),
        };
        match quick {
            Some(now) => line == Timeline::of(now),
            None => self.timeline(stream) == Ok(line),
        }
    }

    /// Whose an ordinary one is, and what is known of it.
    fn known(&self, stream: StreamHandle) -> Result<(Timeline, u64), BackendError> {
        if let Capturing::Into(capture) = self.capturing(stream)? {
            let (stream, capture) = (StreamId(CAPTURED | stream.0 as u64), Some(capture));
            return Ok((Timeline { stream, capture }, 0));
        }
        let Some((code, id)) = self.ask_id(stream) else {
            let (place, context) = self.context_of(stream)?;
            context.verify()?;
            context.chain(stream.0)?;
            let id = (place as u64) << PLACE | stream.0 as u64;
            return Ok((Timeline::of(StreamId(id)), 0));
        };
        self.check("cuStreamGetId", code)?;
        let latest = &self.latest[id as usize % LATEST];
        let mut known = latest.load(Ordering::Relaxed);
        if known & KIND == 0 || known >> KNOWN != id {
            let (_, context) = self.context_of(stream)?;
            context.verify()?;
            known = id << KNOWN | FIT;
            latest.store(known, Ordering::Relaxed);
        }
        Ok((Timeline::of(StreamId(id)), known))
    }

    /// Does this stream, which is not being captured and of which so much is known, wait for no other by itself? The caller is in relaxed
    /// capture mode.
    fn is_apart(&self, stream: StreamHandle, known: u64) -> bool {
        let kind = match known & KIND {
            0 | FIT => self.kind(stream),
            kind => Some(kind),
        };
        if let Some(kind) = kind
            && known & KIND == FIT
        {
            let id = known >> KNOWN;
            self.latest[id as usize % LATEST].store(id << KNOWN | kind, Ordering::Relaxed);
        }
        kind == Some(APART)
    }

    fn kind(&self, stream: StreamHandle) -> Option<u64> {
        let get_flags = self.driver.symbols.stream_get_flags?;
        let mut flags = 0;
        // SAFETY: the caller's stream, which is not being captured; the variable is ours.
        let code = unsafe { get_flags(handle(stream), &raw mut flags) };
        let apart = flags & CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint != 0;
        (code == SUCCESS).then_some(if apart { APART } else { TIED })
    }

    /// The number of the context whose built-in streams are meant, which is made current if none is.
    fn built_in(&self) -> Result<(u64, Option<Entered>), BackendError> {
        let now = context::current(self.driver)?;
        if now == self.own.handle || now == 0 {
            self.own.verify()?;
            let entered = (now == 0).then(|| self.own.enter()).transpose()?;
            return Ok((self.own.serial, entered));
        }
        let (_, context) = self.place(now)?;
        context.verify()?;
        Ok((context.serial, None))
    }

    fn context_of(&self, stream: StreamHandle) -> Result<(usize, Arc<Context>), BackendError> {
        let Some(get) = self.driver.symbols.stream_get_ctx else {
            return Ok((0, self.own()?));
        };
        let mut context: CUcontext = ptr::null_mut();
        // SAFETY: the caller's stream, which is not being captured; the variable is ours.
        let code = unsafe { get(handle(stream), &raw mut context) };
        self.check("cuStreamGetCtx", code)?;
        self.place(context.expose_provenance())
    }

    /// What goes for a call that names a stream: an error of the handle is the stream's.
    #[inline]
    pub(super) fn check(&self, call: &str, code: Code) -> Result<(), BackendError> {
        if code == SUCCESS {
            Ok(())
        } else {
            Err(self.error(call, code))
        }
    }

    #[cold]
    fn error(&self, call: &str, code: Code) -> BackendError {
        self.blame(self.driver.stream_error(call, code))
    }

    /// Finds out which context is lost, if one is: a call that names a stream does not say.
    #[cold]
    fn blame(&self, error: BackendError) -> BackendError {
        if matches!(error, BackendError::Lost(_)) {
            for context in self.contexts() {
                let _ = context.probe();
            }
        }
        error
    }

    fn capturing(&self, stream: StreamHandle) -> Result<Capturing, BackendError> {
        captures::capturing(self.driver, stream).map_err(|error| self.blame(error))
    }

    /// Has it work left, if it is still that stream? Of what a blocking stream waits for by itself, the legacy stream's, this
    /// question says nothing, though an event there would; but of the legacy stream it is answered for those that it waits for, too
    /// (measured, as its synchronise waits for them).
    pub(super) fn has_work(&self, stream: StreamHandle, line: Timeline) -> Option<bool> {
        const NOT_READY: Code = CUresult::CUDA_ERROR_NOT_READY as Code;
        let query = self.driver.symbols.stream_query?;
        let (named, known, _current) = match stream.0 {
            0 | LEGACY => match self.built_in() {
                Ok((serial, current)) if line == Timeline::of(legacy(serial)) => {
                    (StreamHandle(LEGACY), 0, current)
                }
                _ => return None,
            },
            PER_THREAD => return None,
            _ => match self.known(stream) {
                Ok((now, known)) if now == line && line.capture.is_none() => (stream, known, None),
                _ => return None,
            },
        };
        let _mode = context::relax(self.driver).ok()?;
        let is_whole = match named.0 {
            LEGACY => self.capturing(named) == Ok(Capturing::No), // of the others the line says so
            _ => self.is_apart(named, known),
        };
        if !is_whole {
            return None;
        }
        // SAFETY: a stream that was there just now, and is not being captured. What else it may say an event will, too.
        match unsafe { query(handle(named)) } {
            SUCCESS => Some(false),
            NOT_READY => Some(true),
            _ => None,
        }
    }

    /// The stream, if an event may be recorded on it or waited for by it now.
    pub(super) fn usable(&self, stream: StreamHandle) -> Result<Usable, BackendError> {
        let (place, context, current, named) = match stream.0 {
            0 | LEGACY | PER_THREAD => {
                let now = context::current(self.driver)?;
                let (place, context) = match now {
                    0 => (0, self.own()?),
                    now => self.place(now)?,
                };
                let current = (now == 0).then(|| context.enter()).transpose()?;
                (place, Some(context), current, StreamHandle(stream.0.max(LEGACY)))
            }
            _ => (0, None, None, stream),
        };
        if self.capturing(named)? != Capturing::No {
            return Err(BackendError::Capturing(format!(
                "stream {stream} is being captured, or is the legacy stream beside a stream that is"
            )));
        }
        let (place, context) = match context {
            Some(context) => (place, context),
            None => self.context_of(stream)?,
        };
        context.verify()?;
        Ok(Usable {
            stream: handle(named),
            context,
            place,
            _current: current,
        })
    }
}

/// Refuses the host and host streams. The driver, which knows neither, would look for its stream at that address.
#[inline]
pub(super) fn check_handle(stream: StreamHandle) -> Result<(), BackendError> {
    match is_own_handle(stream.0) {
        false => Ok(()),
        true => Err(not_the_drivers(stream)),
    }
}

#[cold]
fn not_the_drivers(stream: StreamHandle) -> BackendError {
    let why = match stream {
        StreamHandle::HOST => "it is the host, on which no work is queued",
        _ => {
            "it is a handle of weir_host_stream_create, which the driver does not know: its stream was destroyed, or lives and \
             is for host pools; pass a stream of the driver's"
        }
    };
    BackendError::InvalidStream(why.into())
}

/// The driver's type for a handle.
pub(super) fn handle(stream: StreamHandle) -> CUstream {
    ptr::with_exposed_provenance_mut(stream.0)
}

impl Drop for Streams {
    /// What the contexts hold of the process goes even when nothing of the driver can.
    fn drop(&mut self) {
        self.leave();
    }
}
