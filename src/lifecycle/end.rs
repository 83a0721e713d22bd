//! The beginning and the end of pools: create, destroy, finalize, and the end of the process.
//!
//! A pool is first removed from the registry and then ended, so no call can begin on a pool that is ending; a
//! call that was under way finds out from the pool itself.
//!
//! What the program deferred until work is complete is called before anything ends.
//!
//! At exit the default pools end, because nobody else can end them, and so do the workers of all pools and of host
//! streams. A pool that the program created and never destroyed is left alone: its leak stays visible to leak checkers, and
//! static destructors that run later can still use it. Pools of devices end first, in a handler of their own that runs
//! while the driver is still there; what is asked of such pools after that touches their books alone.
//!
//! Locks: `ENDING` is held while `finalize` ends pools, so that every caller returns to a process without any.

use super::registry::{self, Ending, POOLS};
use super::{backends, defaults, deferred, order, threads};
use crate::backend::cuda::registrations;
use crate::backend::{Backend, process};
use crate::base::error::Error;
use crate::base::units::{Addr, Human};
use crate::config::{Config, MemoryKind};
use crate::pool::{Leaked, Pool};
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

static ENDING: Mutex<()> = Mutex::new(());
static EXITING: AtomicBool = AtomicBool::new(false);

/// Has the exit handler run? What is asked for now can no longer be ended by weir.
pub fn exiting() -> bool {
    EXITING.load(Ordering::SeqCst)
}

/// Is this a forked child, where nothing of the parent's may be touched?
#[inline]
pub fn forked() -> bool {
    process::forked()
}

/// Begins to watch for forks and for the end of the process; every way into weir that creates something calls
/// it first.
pub fn prepare() -> Result<(), Error> {
    static PREPARED: OnceLock<Result<(), Error>> = OnceLock::new();
    PREPARED
        .get_or_init(|| {
            let watched = process::watch_fork().and_then(|()| process::at_exit(on_exit));
            watched.map_err(|error| Error::Backend(error.to_string()))
        })
        .clone()
}

/// To be called once the driver has been opened: begins to watch for the moment just before it goes.
pub fn prepare_devices() -> Result<(), Error> {
    static PREPARED: OnceLock<Result<(), Error>> = OnceLock::new();
    let prepared = || process::at_exit(on_exit_of_devices).map_err(backends::error);
    PREPARED.get_or_init(prepared).clone()
}

/// To be called once a pool that will have a worker has its backend: begins to watch for the moment just before that
/// goes.
pub fn prepare_workers() -> Result<(), Error> {
    static PREPARED: OnceLock<Result<(), Error>> = OnceLock::new();
    let prepared = || process::at_exit(on_exit_of_workers).map_err(backends::error);
    PREPARED.get_or_init(prepared).clone()
}

extern "C" fn on_exit_of_workers() {
    if !forked() {
        // as in `at_exit`
        let _ = std::panic::catch_unwind(|| dismiss_workers(|_| true));
    }
}

extern "C" fn on_exit() {
    at_exit(|_| true, order::shutdown);
}

extern "C" fn on_exit_of_devices() {
    // a pool that is still there may yet be destroyed, but when tools look the driver is gone
    at_exit(
        |kind| kind != MemoryKind::Host,
        || {
            registrations::shutdown();
            POOLS.pools().for_each(|pool| pool.abandon());
        },
    );
}

/// Pools' workers of that memory end: none may be inside a driver when it goes.
fn dismiss_workers(of: fn(MemoryKind) -> bool) {
    let pools = POOLS.pools().filter(|pool| of(pool.config().memory));
    pools.for_each(|pool| pool.dismiss());
}

/// Ends the default pools of some kinds of memory, and the workers of all, then does the rest.
fn at_exit(ends: fn(MemoryKind) -> bool, rest: fn()) {
    if forked() {
        return;
    }
    // A panic must not reach the C library, and nobody is left to be told.
    let _ = std::panic::catch_unwind(|| {
        EXITING.store(true, Ordering::SeqCst);
        deferred::finish();
        dismiss_workers(ends);
        for handle in defaults::handles() {
            if POOLS.get(handle).is_ok_and(|pool| ends(pool.config().memory))
                && let Ok(pool) = POOLS.remove(handle, Ending::Finalized)
            {
                pool.end();
            }
        }
        threads::forget_ended();
        rest();
    });
}

/// Creates a pool and gives it a handle with one reference.
pub fn create(config: Config) -> Result<usize, Error> {
    install(config, Pool::new)
}

/// The same for a pool that is made otherwise.
pub fn install(
    config: Config,
    make: impl FnOnce(Config, Arc<dyn Backend>) -> Result<Pool, Error>,
) -> Result<usize, Error> {
    prepare()?;
    let backend = backends::create(&config)?;
    if config.growth_ahead != 0 {
        prepare_workers()?;
    }
    let pool = Arc::new(make(config, backend)?);
    pool.employ();
    let handle = POOLS.insert(pool.clone()).ok_or_else(|| {
        pool.end();
        Error::NotSupported(format!(
            "{} pools are live, and there can be no more; destroy some",
            registry::SLOTS
        ))
    })?;
    if exiting() {
        // the handler that dismisses workers may have been through
        pool.dismiss();
    }
    Ok(handle)
}

/// Ends a pool whatever its references.
pub fn destroy(handle: usize) -> Result<(), Error> {
    may_end(handle)?;
    let pool = POOLS.remove(handle, Ending::Destroyed)?;
    end(handle, &pool)
}

/// One reference less; the last one ends the pool.
pub fn release(handle: usize) -> Result<(), Error> {
    if POOLS.is_last(handle)? {
        may_end(handle)?;
    }
    match POOLS.release(handle)? {
        Some(pool) => end(handle, &pool),
        None => Ok(()),
    }
}

fn may_end(handle: usize) -> Result<(), Error> {
    let pool = POOLS.get(handle)?;
    order::may_wait_for(&pool)?;
    pool.may_end()
}

fn end(handle: usize, pool: &Pool) -> Result<(), Error> {
    threads::forget_ended();
    match report(handle, pool, &pool.end()) {
        Some(report) => Err(Error::LiveBlocks(report)),
        None => Ok(()),
    }
}

/// Ends every pool, host stream and host event of the process. The next use starts anew.
pub fn finalize() -> Result<(), Error> {
    if forked() {
        return Ok(());
    }
    deferred::finish();
    let ending = ENDING.lock().unwrap_or_else(PoisonError::into_inner);
    threads::forget_ended();
    defaults::forget_current();
    let mut reports: Vec<String> = Vec::new();
    for handle in POOLS.handles() {
        if let Err(Error::Capture(why)) = POOLS.get(handle).and_then(|pool| pool.may_end()) {
            reports.push(why);
            continue;
        }
        // Somebody else may have destroyed it just now.
        if let Ok(pool) = POOLS.remove(handle, Ending::Finalized) {
            reports.extend(report(handle, &pool, &pool.end()));
        }
    }
    registrations::shutdown();
    drop(ending);
    threads::forget_ended();
    order::shutdown();
    // functions that ran on host streams until now may have deferred others
    deferred::finish();
    if reports.is_empty() {
        Ok(())
    } else {
        Err(Error::LiveBlocks(reports.join("; ")))
    }
}

/// What was live in a pool that has ended, for people; None if nothing was.
fn report(handle: usize, pool: &Pool, leaked: &Leaked) -> Option<String> {
    if leaked.blocks == 0 {
        return None;
    }
    let mut text = format!(
        "pool \"{}\" ({handle:#x}) ended with {} still live, {} ({} B) in all; largest:",
        pool.config().name,
        match leaked.blocks {
            1 => "1 block".to_string(),
            blocks => format!("{blocks} blocks"),
        },
        Human(leaked.bytes),
        leaked.bytes
    );
    for (n, (at, bytes)) in leaked.largest.iter().enumerate() {
        let _ = write!(text, "{} {bytes} B at {at}", if n == 0 { "" } else { "," });
    }
    text.push_str("; its memory has been given back, so free blocks before the pool");
    Some(text)
}

/// A pointer that no pool knows, or that lies in the memory of another one?
pub fn find_owner(error: Error) -> Error {
    match error {
        Error::UnknownPointer(at) => match owner(at) {
            Some((_, owner)) => Error::WrongPool {
                at,
                owner: owner.config().name.clone(),
            },
            None => error,
        },
        error => error,
    }
}

/// The pool in whose memory an address lies, and its handle.
pub fn owner(at: Addr) -> Option<(usize, Arc<Pool>)> {
    POOLS
        .handles()
        .filter_map(|handle| Some((handle, POOLS.get(handle).ok()?)))
        .find(|(_, pool)| pool.contains(at))
}
