//! Memory of the program's own that it has page-locked for its copies.
//!
//! What somebody else has page-locked already is noted, so that it is given back by the same call, and otherwise left to
//! whoever did it.
//!
//! Invariant: ranges in `RANGES` do not overlap, those included that somebody is registering or letting go of just now; each
//! other one that is weir's has a reference to the context that it was registered in.
//!
//! Locks: `RANGES`, for a look, and never in a call of the driver, which may wait for running work.

use super::context::{self, Context, lock, relax};
use super::copies::{Known, known};
use super::driver::{self, Driver};
use crate::backend::BackendError;
use crate::base::units::Addr;
use std::collections::BTreeMap;
use std::ffi::{c_uint, c_void};
use std::mem;
use std::ptr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// `CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP`: for every context, and reached by kernels.
pub(super) const FLAGS: c_uint = 1 | 2;

#[derive(Debug)]
enum State {
    /// A call is under way that registers it or lets go of it.
    Changing,
    /// By whoever registered it.
    Theirs,
    /// By us, in this context.
    Ours(Arc<Context>),
}

#[derive(Debug)]
struct Range {
    bytes: u64,
    state: State,
}

impl Range {
    fn changes(&self) -> bool {
        matches!(self.state, State::Changing)
    }
}

type Ranges = MutexGuard<'static, BTreeMap<u64, Range>>;

static RANGES: Mutex<BTreeMap<u64, Range>> = Mutex::new(BTreeMap::new());
/// A range is `Changing` no more.
static CHANGED: Condvar = Condvar::new();

fn pointer(at: u64) -> *mut c_void {
    ptr::with_exposed_provenance_mut(at as usize)
}

/// Why memory is not registered.
#[derive(Debug)]
pub enum Refusal {
    /// The program's mistake.
    Mistake(String),
    /// The driver's failure.
    Backend(BackendError),
}

impl From<BackendError> for Refusal {
    fn from(error: BackendError) -> Refusal {
        Refusal::Backend(error)
    }
}

/// Page-locks memory of the program's. Pre: it is there until it is unregistered.
pub fn register(driver: &'static Driver, at: Addr, bytes: u64) -> Result<(), Refusal> {
    driver::still_usable()?;
    let end =
        at.0.checked_add(bytes)
            .filter(|_| bytes > 0)
            .ok_or_else(|| Refusal::Mistake(format!("{bytes} B at {at} are no memory")))?;
    let mut ranges = lock(&RANGES);
    if let Some((&known, range)) = ranges.range(..end).next_back()
        && known + range.bytes > at.0
    {
        return Err(Refusal::Mistake(format!(
            "{bytes} B at {at} overlap with {} B at {known:#x}, which are registered",
            range.bytes
        )));
    }
    let state = State::Changing;
    ranges.insert(at.0, Range { bytes, state });
    drop(ranges);
    let mut change = Change { at: at.0, to: None };
    change.to = Some(lock_unless_locked(driver, at, bytes)?);
    Ok(())
}

/// Whoever has set a range to `Changing`. Others wait for its end, so that comes with a panic, too.
struct Change {
    at: u64,
    /// What the range is then; None: it is no more.
    to: Option<State>,
}

impl Drop for Change {
    fn drop(&mut self) {
        let mut ranges = lock(&RANGES);
        match self.to.take() {
            Some(state) => {
                if let Some(range) = ranges.get_mut(&self.at) {
                    range.state = state;
                }
            }
            None => {
                ranges.remove(&self.at);
            }
        }
        drop(ranges);
        CHANGED.notify_all();
    }
}

/// Waits until that is no longer `Changing`.
fn settled(mut ranges: Ranges, is_changing: impl Fn(&Ranges) -> bool) -> Ranges {
    while is_changing(&ranges) {
        ranges = CHANGED.wait(ranges).unwrap_or_else(PoisonError::into_inner);
    }
    ranges
}

fn any_changes(ranges: &Ranges) -> bool {
    ranges.values().any(Range::changes)
}

fn lock_unless_locked(driver: &'static Driver, at: Addr, bytes: u64) -> Result<State, Refusal> {
    // a driver knows no address without a context
    let borrowed = match context::current(driver)? {
        0 => Some(context::borrow(driver, 0)?),
        _ => None,
    };
    let _current = borrowed.as_ref().map(|context| context.enter()).transpose()?;
    match (known(at)?, known(Addr(at.0 + bytes - 1))?) {
        (Known::Device, _) => Err(Refusal::Backend(BackendError::NotSupported(format!(
            "{at} is a device's memory, which is nothing to page-lock"
        )))),
        (Known::Pinned, Known::Pinned) => Ok(State::Theirs),
        (Known::Pinned, _) => Err(partly(at, bytes)),
        (Known::Pageable, _) => lock_pages(driver, at, bytes).map(State::Ours),
    }
}

fn partly(at: Addr, bytes: u64) -> Refusal {
    Refusal::Mistake(format!(
        "a part of the {bytes} B at {at} is page-locked already; register what is not, or let go of that part first"
    ))
}

fn lock_pages(driver: &'static Driver, at: Addr, bytes: u64) -> Result<Arc<Context>, Refusal> {
    /// `CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED`
    const ALREADY: u32 = 712;
    let context = context::primary(driver, context::current(driver)?)?;
    let (_current, _mode) = (context.enter()?, relax(driver)?);
    // SAFETY: the program's memory, which stays as long as it is registered: the precondition of its call.
    let code = unsafe { (driver.symbols.mem_host_register)(pointer(at.0), bytes as usize, FLAGS) };
    if code == ALREADY {
        return Err(partly(at, bytes));
    }
    context.check("cuMemHostRegister", code)?;
    Ok(context)
}

/// Ends a registration, after all work of contexts in use. False: nothing was registered there, once what other threads do
/// with it has come to its end.
pub fn unregister(at: Addr) -> Result<bool, BackendError> {
    driver::still_usable()?;
    let Some(state) = begin_change(at) else {
        return Ok(false);
    };
    let mut change = Change {
        at: at.0,
        to: Some(state),
    };
    if let Some(State::Ours(context)) = &change.to {
        unlock_pages(context, at.0)?;
    }
    change.to = None;
    Ok(true)
}

/// What is registered there, if anything, now that nobody else changes it. The caller does, and makes a `Change` at once.
fn begin_change(at: Addr) -> Option<State> {
    let mut ranges = settled(lock(&RANGES), |ranges| {
        ranges.get(&at.0).is_some_and(Range::changes)
    });
    let range = ranges.get_mut(&at.0)?;
    Some(mem::replace(&mut range.state, State::Changing))
}

fn unlock_pages(context: &Arc<Context>, at: u64) -> Result<(), BackendError> {
    if context.is_gone() {
        return Ok(());
    }
    for user in context::joined() {
        user.drain()?;
    }
    context.drain()?;
    // SAFETY: registered by `lock_pages`, and no work is left that could use it.
    let unregister = || unsafe { (context.driver.symbols.mem_host_unregister)(pointer(at)) };
    match context.give_back("cuMemHostUnregister", unregister) {
        Err(BackendError::Lost(_)) => Ok(()),
        result => result,
    }
}

/// Ends all registrations. What the driver refuses to let go of stays registered until the process ends.
pub fn shutdown() {
    if !driver::usable() {
        return;
    }
    let all: Vec<u64> = settled(lock(&RANGES), any_changes).keys().copied().collect();
    for at in all {
        // one by one, so that whoever ends one meanwhile waits for this
        let Some(state) = begin_change(Addr(at)) else {
            continue;
        };
        let _change = Change { at, to: None };
        if let State::Ours(context) = &state {
            let _ = unlock_pages(context, at);
        }
    }
    // an empty map may still have a node of its own
    let mut ranges = lock(&RANGES);
    if ranges.is_empty() {
        mem::take(&mut *ranges);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::catch_unwind;

    /// A panic of the thread that registers memory, or lets go of it, leaves nobody waiting.
    #[test]
    fn a_change_that_panics_ends() {
        for to in [None, Some(State::Theirs)] {
            let (at, lasts) = (1 << 40, to.is_some());
            let state = State::Changing;
            lock(&RANGES).insert(at, Range { bytes: 1, state });
            let panicked = catch_unwind(move || {
                let _change = Change { at, to };
                panic!("as a driver's answer might");
            });
            assert!(panicked.is_err());
            let mut ranges = settled(lock(&RANGES), any_changes);
            assert_eq!(ranges.remove(&at).is_some(), lasts);
        }
    }
}
