//! Copies that the program queues through weir, so that what they read and write lives as long as they need it.
//!
//! A copy goes on a host stream if there is one of that handle, on the driver's if the process has a driver; on any other
//! stream nothing is ever in flight, and the copy is made at once.
//!
//! Locks: none; pools and backends lock for themselves.

use super::backends::error as backend_error;
use super::deferred::{self, Function, Place};
use super::order;
use super::registry::POOLS;
use super::{defaults, end};
use crate::backend::cuda::copies as driver;
use crate::backend::cuda::copies::Known;
use crate::backend::host::copies as host;
use crate::backend::staging::{CopyQueue, Moment};
use crate::backend::{BackendError, transfer};
use crate::base::error::Error;
use crate::base::units::{Addr, StreamHandle};
use crate::config::{Config, MemoryKind};
use crate::pool::{Chunk, Pool, SHORT};
use std::cell::Cell;
use std::sync::Arc;

pub use crate::backend::staging::Copy;

thread_local! {
    /// The stream that this thread's last staged copy was on, and the pool it went through, so that short copies in a row
    /// need not ask the driver for the device. Has no destructor.
    static LAST: Cell<(Option<deferred::Line>, usize)> = const { Cell::new((None, 0)) };
}

/// Where copies are queued.
enum Queue {
    Host(host::Stream),
    Driver(driver::Stream),
    /// On no stream: what is to be done is done.
    None,
}

/// A moment on a stream on which nothing is in flight.
struct Past;

impl Moment for Past {
    fn is_over(&self) -> bool {
        true
    }
    fn wait(&self) -> Result<(), BackendError> {
        Ok(())
    }
}

impl CopyQueue for Queue {
    fn copy(&self, to: Addr, from: Addr, bytes: u64) -> Result<(), BackendError> {
        match self {
            Queue::Host(stream) => stream.copy(to, from, bytes),
            Queue::Driver(stream) => stream.copy(to, from, bytes),
            Queue::None => {
                transfer::copy(to, from, bytes as usize);
                Ok(())
            }
        }
    }

    fn moment(&self) -> Result<Arc<dyn Moment>, BackendError> {
        match self {
            Queue::Host(stream) => stream.moment(),
            Queue::Driver(stream) => stream.moment(),
            Queue::None => Ok(Arc::new(Past)),
        }
    }

    fn may_wait(&self) -> Result<(), BackendError> {
        match self {
            Queue::Host(stream) => stream.may_wait(),
            Queue::Driver(stream) => stream.may_wait(),
            Queue::None => Ok(()),
        }
    }
}

impl Queue {
    fn of(stream: StreamHandle) -> Result<Queue, Error> {
        if order::is_host_stream(stream) {
            return Ok(Queue::Host(host::Stream(stream)));
        }
        if driver::driver().is_none() {
            return Ok(Queue::None);
        }
        end::prepare()?; // a fork is to be noticed where there was no pool, too
        end::prepare_devices()?;
        driver::Stream::new(stream)
            .map(Queue::Driver)
            .map_err(|error| stream_error(stream, error))
    }

    /// Tells streams apart.
    fn identity(&self) -> Result<deferred::Line, BackendError> {
        match self {
            Queue::Host(stream) => Ok(stream.identity()),
            Queue::Driver(stream) => stream.identity(),
            Queue::None => Ok((0, 0)),
        }
    }

    /// The same for who keeps them; None: a stream that is no more may have had them, and still have work in flight.
    fn lasting_identity(&self) -> Result<Option<deferred::Line>, BackendError> {
        match self {
            Queue::Driver(stream) if !stream.has_identity() => Ok(None),
            _ => self.identity().map(Some),
        }
    }

    /// Refuses a stream whose work is captured: what is to happen when it is complete would have to happen at each launch.
    fn refuse_captured(&self, what: &str) -> Result<(), Error> {
        match self {
            Queue::Driver(stream) if stream.is_captured().map_err(backend_error)? => {
                Err(Error::Capture(format!(
                    "{what} is nothing for a graph, which does its work anew at each launch; copy without it while the stream \
                 is captured"
                )))
            }
            _ => Ok(()),
        }
    }

    /// The pool that pieces of copies on this stream go through; `line` is its lasting identity.
    fn staging_pool(
        &self,
        line: Option<deferred::Line>,
        config: impl FnOnce() -> Result<Config, Error>,
    ) -> Result<Arc<Pool>, Error> {
        let (last, handle) = LAST.get();
        if line.is_some()
            && line == last
            && let Ok(pool) = POOLS.get(handle)
        {
            return Ok(pool);
        }
        let handle = match self {
            Queue::Driver(stream) => {
                let device = stream.device().map_err(backend_error)?;
                defaults::staging_pool(device, config)?
            }
            Queue::Host(_) | Queue::None => defaults::staging_pool(defaults::HOST, config)?,
        };
        LAST.set((line, handle));
        POOLS.get(handle)
    }

    /// Which way a staged copy goes.
    fn way(&self, copy: Copy, ends: &Ends) -> Result<Way, BackendError> {
        Ok(match self {
            Queue::None => Way::Direct,
            // blocks are what its work is on, as a device's memory is
            Queue::Host(_) => match (&ends.from, &ends.to) {
                (End::Host(..), End::Host(..)) => Way::Direct,
                (End::Host(..), _) => Way::Out,
                _ => Way::In,
            },
            Queue::Driver(_) => match (ends.from.known(copy.from)?, ends.to.known(copy.to)?) {
                (Known::Pageable, Known::Pageable) | (Known::Device, Known::Device | Known::Pinned) => {
                    Way::Direct
                }
                (Known::Device | Known::Pinned, Known::Pageable) => Way::Out,
                (Known::Pageable | Known::Pinned, _) => Way::In,
            },
        })
    }
}

enum Way {
    /// Through memory that is then the copy's alone; its source may change.
    In,
    /// Through such memory to where only the host writes.
    Out,
    /// As it is, waiting for it.
    Direct,
}

fn stream_error(stream: StreamHandle, error: BackendError) -> Error {
    match error {
        BackendError::InvalidStream(why) => Error::InvalidStream(stream, why),
        error => backend_error(error),
    }
}

/// What weir knows of an end of a copy.
enum End {
    /// Nothing.
    Foreign,
    /// A block of a device's pool begins there.
    Device,
    /// The block of a host's or a pinned pool that it lies in.
    Host(Arc<Pool>, Addr),
}

impl End {
    /// Looks at a pool, without a lock. True: the end may lie in it, and `settle` finds out.
    fn glance(&mut self, at: Addr, pool: &Pool) -> bool {
        match (&self, pool.config().memory) {
            (End::Foreign, MemoryKind::Device) => {
                if pool.has_block_at(at) {
                    *self = End::Device;
                }
                false
            }
            (End::Foreign, MemoryKind::Host | MemoryKind::Pinned) => pool.may_contain(at),
            _ => false,
        }
    }

    fn settle(&mut self, at: Addr, pool: &Arc<Pool>) -> Result<(), Error> {
        if !self.glance(at, pool) {
            return Ok(());
        }
        match pool.block_around(at) {
            Ok(block) => *self = End::Host(pool.clone(), block),
            // somebody else's memory nearby, or the pool has just ended
            Err(Error::UnknownPointer(_) | Error::PoolDestroyed { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// What the driver knows of it; asked only if weir does not know.
    fn known(&self, at: Addr) -> Result<Known, BackendError> {
        match self {
            End::Device => Ok(Known::Device),
            End::Host(pool, _) if pool.config().memory == MemoryKind::Pinned => Ok(Known::Pinned),
            _ => driver::known(at),
        }
    }

    /// What has been queued on the stream until now uses it.
    fn note(&self, stream: StreamHandle, queue: &Queue) -> Result<(), Error> {
        let End::Host(pool, block) = self else {
            return Ok(());
        };
        // a pool hears of streams of its own kind only
        let knows = match queue {
            Queue::Host(_) => pool.config().memory == MemoryKind::Host,
            Queue::Driver(_) => pool.config().memory == MemoryKind::Pinned,
            Queue::None => false,
        };
        match knows {
            true => pool.copy_queued(*block, stream),
            false => Ok(()),
        }
    }
}

/// Both ends of a copy.
struct Ends {
    to: End,
    from: End,
}

impl Ends {
    /// By one look at the pools.
    fn of(copy: Copy) -> Result<Ends, Error> {
        let (mut to, mut from) = (End::Foreign, End::Foreign);
        let mut place = 0;
        while let Some((found, pool)) = POOLS.find(place, |pool| {
            let (first, second) = (to.glance(copy.to, pool), from.glance(copy.from, pool));
            first || second
        }) {
            to.settle(copy.to, &pool)?;
            from.settle(copy.from, &pool)?;
            place = found + 1;
        }
        Ok(Ends { to, from })
    }
}

/// Queues a copy. Blocks of host and pinned pools that it uses may be freed at once.
pub fn copy(copy: Copy, stream: StreamHandle) -> Result<(), Error> {
    let queue = Queue::of(stream)?;
    if copy.bytes == 0 {
        return Ok(());
    }
    queue_copy(copy, &Ends::of(copy)?, stream, &queue)
}

fn queue_copy(copy: Copy, ends: &Ends, stream: StreamHandle, queue: &Queue) -> Result<(), Error> {
    queue
        .copy(copy.to, copy.from, copy.bytes)
        .map_err(|error| stream_error(stream, error))?;
    // it is queued: what fails for one end must not keep the other from being noted
    let noted = ends.from.note(stream, queue);
    noted.and(ends.to.note(stream, queue))
}

/// The same, with `release` called when the copy is complete.
pub fn copy_hold(copy: Copy, stream: StreamHandle, release: Function) -> Result<(), Error> {
    let queue = Queue::of(stream)?;
    queue.refuse_captured("a copy that holds its source")?;
    if let Queue::Driver(_) = queue {
        // a host stream's own function may have one queued: it is not the caller who waits
        queue.may_wait().map_err(|error| stream_error(stream, error))?;
    }
    let place = deferred::prepare()?;
    if copy.bytes > 0 {
        queue_copy(copy, &Ends::of(copy)?, stream, &queue)?;
    }
    behind(&queue, stream, place, release)
}

/// Has `function` called when what is queued on `stream` until now is complete.
pub fn defer(stream: StreamHandle, function: Function) -> Result<(), Error> {
    let queue = Queue::of(stream)?;
    queue.refuse_captured("a deferred call")?;
    behind(&queue, stream, deferred::prepare()?, function)
}

fn behind(queue: &Queue, stream: StreamHandle, place: Place, function: Function) -> Result<(), Error> {
    let error = |error| stream_error(stream, error);
    let line = queue.identity().map_err(error)?;
    place.take(line, queue.moment().map_err(error)?, function);
    Ok(())
}

/// Queues a copy whose source may change, or has made it, when the call returns.
pub fn copy_staged(
    copy: Copy,
    stream: StreamHandle,
    config: impl FnOnce() -> Result<Config, Error>,
) -> Result<(), Error> {
    let queue = Queue::of(stream)?;
    queue.refuse_captured("a staged copy")?;
    if copy.bytes == 0 {
        return Ok(());
    }
    let error = |error| stream_error(stream, error);
    let ends = Ends::of(copy)?;
    let way = queue.way(copy, &ends).map_err(error)?;
    let line = queue.lasting_identity().map_err(error)?;
    if let Way::Out = way {
        queue.may_wait().map_err(error)?;
    }
    if let Way::In | Way::Out = way
        && let Ok(pool) = queue.staging_pool(line, config)
        && let Some(done) = through_pool(&pool, copy, &way, line, stream, &queue)
    {
        // the end that the stream works on, and still may; a copy that failed may have been queued in part
        let noted = match (&way, &done) {
            (Way::In, _) => ends.to.note(stream, &queue),
            (_, Err(_)) => ends.from.note(stream, &queue),
            _ => Ok(()),
        };
        return done.and(noted);
    }
    queue.may_wait().map_err(error)?;
    queue_copy(copy, &ends, stream, &queue)?;
    queue.moment().and_then(|moment| moment.wait()).map_err(error)
}

/// The copy, through memory of a staging pool. None: there is none.
fn through_pool(
    pool: &Pool,
    copy: Copy,
    way: &Way,
    line: Option<deferred::Line>,
    stream: StreamHandle,
    queue: &Queue,
) -> Option<Result<(), Error>> {
    let _passage = pool.passage()?;
    if copy.bytes <= SHORT
        && let Some(line) = line
        && let Ok(chunk) = pool.chunk(line, copy.bytes, stream)
    {
        return Some(through_chunk(chunk, pool, copy, way, stream, queue));
    }
    let slots = Slots::take(copy, pool)?;
    let done = match way {
        Way::In => copy.into_stream(&slots.at, queue),
        _ => copy.out_of_stream(&slots.at, queue),
    };
    let given_back = slots.give_back(stream);
    Some(done.map_err(|error| stream_error(stream, error)).and(given_back))
}

fn through_chunk(
    mut chunk: Chunk,
    pool: &Pool,
    copy: Copy,
    way: &Way,
    stream: StreamHandle,
    queue: &Queue,
) -> Result<(), Error> {
    let (piece, bytes) = (chunk.piece(copy.bytes), copy.bytes as usize);
    let (to, from) = match way {
        Way::In => {
            transfer::copy(piece, copy.from, bytes);
            (copy.to, piece)
        }
        _ => (piece, copy.from),
    };
    let queued = queue.copy(to, from, copy.bytes);
    let queued = queued.and_then(|()| chunk.used(stream, || queue.moment()));
    let done = match way {
        Way::Out => queued.and_then(|()| chunk.wait()),
        _ => queued,
    };
    match done {
        Ok(()) => {
            if let Way::Out = way {
                transfer::copy(copy.to, piece, bytes);
            }
            pool.keep_chunk(chunk);
            Ok(())
        }
        Err(error) => {
            // the copy may have been queued, and no moment is known behind it that could be waited for
            pool.free_chunk(chunk, stream)
                .and(Err(stream_error(stream, error)))
        }
    }
}

/// Blocks that pieces of a copy go through.
struct Slots<'a> {
    pool: &'a Pool,
    at: Vec<Addr>,
}

impl Slots<'_> {
    /// As many as can be had; None: there is no memory for any.
    fn take(copy: Copy, pool: &Pool) -> Option<Slots<'_>> {
        let (bytes, count) = copy.slots();
        let slot = |_| pool.alloc(bytes, 0, StreamHandle::HOST).ok();
        let at: Vec<Addr> = (0..count).map_while(slot).collect();
        (!at.is_empty()).then_some(Slots { pool, at })
    }

    /// They are free when what is queued on the stream is complete. Tried twice, since nobody would do it later.
    fn give_back(self, stream: StreamHandle) -> Result<(), Error> {
        let free = |at: &Addr| self.pool.free(*at, stream).map(drop);
        let freed: Vec<_> = self.at.iter().map(|at| free(at).or_else(|_| free(at))).collect();
        freed.into_iter().collect()
    }
}
