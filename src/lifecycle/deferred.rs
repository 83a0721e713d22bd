//! Functions of the program's that are called when the work before them on a stream is complete.
//!
//! One thread calls them all. It looks at the first of each stream, so that a slow stream holds back nothing of another's,
//! and one stream's are called in the order in which they were deferred. While there are any it looks again after a pause
//! that grows with the time waited, from `SHORT` to `LONG`; while there are none it sleeps. No lock is held in a call, and
//! the driver's own threads have nothing to do with it, so a function may call weir, and the driver.
//!
//! [`finish`] returns when all have been called and the thread is no more: in finalize, and at exit while the driver is
//! there. The next one starts a thread anew. What would be deferred meanwhile is refused; for what has a place already it
//! waits, since a copy may have been queued that the function is to come after.
//!
//! Invariant: `count` = places that wait for their function, functions in `lines`, and the one that is being called.
//!
//! Locks: `FINISHING`, then `STATE`; nothing else is taken under that one.

use super::end;
use crate::backend::process;
use crate::backend::staging::Moment;
use crate::base::error::Error;
use std::cell::Cell;
use std::collections::VecDeque;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// What tells streams apart.
pub type Line = (u64, u64);

/// A function of the program's.
pub type Function = Box<dyn FnOnce() + Send>;

const SHORT: Duration = Duration::from_micros(20);
const LONG: Duration = Duration::from_millis(1);
/// The pause is so small a part of the time waited.
const PATIENCE: u32 = 8;
/// What the thread calls is the program's.
const STACK: usize = 2 << 20;

struct Waiting {
    line: Line,
    waiting: VecDeque<(Arc<dyn Moment>, Function)>,
}

struct State {
    lines: Vec<Waiting>,
    count: usize,
    thread: Option<JoinHandle<()>>,
    closing: bool,
}

static STATE: Mutex<State> = Mutex::new(State {
    lines: Vec::new(),
    count: 0,
    thread: None,
    closing: false,
});
/// Held by who waits for the end of the thread: whoever comes meanwhile waits, too.
static FINISHING: Mutex<()> = Mutex::new(());
/// There is something to wait for, or nothing will come any more.
static CALLED: Condvar = Condvar::new();

thread_local! {
    /// Is this the thread that calls? Has no destructor.
    static CALLS: Cell<bool> = const { Cell::new(false) };
}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What [`finish`] waits for, until it has its function or is dropped.
#[must_use]
pub struct Place(());

/// Starts the thread, so that what comes next cannot fail for the lack of one, nor because [`finish`] has begun.
pub fn prepare() -> Result<Place, Error> {
    end::prepare()?;
    let mut state = state();
    if state.closing || end::exiting() {
        return Err(Error::Unloaded);
    }
    if state.thread.is_none() {
        let thread = Builder::new().name("weir-defer".into()).stack_size(STACK);
        let started = thread.spawn(work);
        state.thread =
            Some(started.map_err(|error| Error::Backend(format!("no thread for deferred calls: {error}")))?);
    }
    state.count += 1;
    Ok(Place(()))
}

impl Place {
    /// Has `function` called when `moment` is over, behind what was deferred on the same line before.
    pub fn take(self, line: Line, moment: Arc<dyn Moment>, function: Function) {
        mem::forget(self);
        let mut state = state();
        let entry = (moment, function);
        match state.lines.iter_mut().find(|known| known.line == line) {
            Some(known) => known.waiting.push_back(entry),
            None => state.lines.push(Waiting {
                line,
                waiting: VecDeque::from([entry]),
            }),
        }
        CALLED.notify_one();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        state().count -= 1;
    }
}

fn work() {
    CALLS.set(true);
    process::work_in_background();
    let mut since = Instant::now();
    let mut known = 0;
    loop {
        let mut now = state();
        if now.count == 0 {
            now.lines = Vec::new();
            if now.closing {
                return;
            }
            drop(CALLED.wait(now));
            since = Instant::now();
            continue;
        }
        if now.count > known {
            since = Instant::now();
        }
        known = now.count;
        let first = |known: &Waiting| Some((known.line, known.waiting.front()?.0.clone()));
        let firsts: Vec<_> = now.lines.iter().filter_map(first).collect();
        drop(now);
        let over: Vec<_> = firsts
            .into_iter()
            .filter(|(_, moment)| moment.is_over())
            .collect();
        if over.is_empty() {
            let pause = (since.elapsed() / PATIENCE).clamp(SHORT, LONG);
            drop(CALLED.wait_timeout(state(), pause));
            continue;
        }
        for (line, _) in over {
            call_first(line);
        }
        since = Instant::now();
    }
}

fn call_first(line: Line) {
    let mut now = state();
    let Some(place) = now.lines.iter().position(|known| known.line == line) else {
        return;
    };
    let first = now.lines[place].waiting.pop_front();
    if now.lines[place].waiting.is_empty() {
        now.lines.swap_remove(place);
    }
    drop(now);
    if let Some((moment, function)) = first {
        drop(moment);
        // the panic hook has printed it, and there is nobody to tell
        drop(catch_unwind(AssertUnwindSafe(function)));
        state().count -= 1;
    }
}

/// Waits until all have been called, and for the end of the thread. Does nothing on that thread, which cannot wait for
/// itself.
pub fn finish() {
    if CALLS.get() || process::forked() {
        return;
    }
    let _one = FINISHING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut now = state();
    now.closing = true;
    let thread = now.thread.take();
    drop(now);
    CALLED.notify_one();
    if let Some(thread) = thread {
        let _ = thread.join();
    }
    mem::take(&mut state().lines);
    state().closing = false;
}
