//! Blocks for other processes: a pool that exports has a *porter*, a thread that lends blocks to those who ask for them
//! (`backend::ipc` has what is said) and takes them back.
//!
//! A block that is lent stays where it is until it is given back, freed or not (`alloc::lend`); all else the pool trims,
//! squeezes and moves as any pool does. An importer that ends gives everything back by that: its line is closed. As work
//! of its may run on until the process has ended altogether, that is waited for, where the system lets one do so.
//!
//! The porter sleeps in the kernel and is started by the first export. It is asked to catch up before the pool looks for
//! memory, gives some back, or tells what it holds: what importers have given back by then counts. Should it panic, nobody
//! waits for it any more, importers find the pool gone, and what they have stays lent until the pool ends.
//!
//! Locks: `entrance` and the bell, of one rank and never both at once; no call of the backend is made under either. The porter
//! takes `Heap`, and only tries `Grow`.

use super::{Pool, translate};
use crate::alloc::lend::Extent;
use crate::alloc::size::MIN_ALIGN;
use crate::backend::ipc::socket::{self, Ready, Socket};
use crate::backend::ipc::token::{Token, What};
use crate::backend::ipc::{self, Kind, MOST, Message, Welcome, words_of};
use crate::backend::{Backend, BackendError, process};
use crate::base::error::Error;
use crate::base::lock::{Rank, Ranked};
use crate::base::units::{Addr, EventHandle, PageHandle, StreamHandle};
use std::cell::Cell;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Weak};
use std::thread::{Builder, JoinHandle};

/// What the porter needs is less; the driver is called on it.
const STACK: usize = 512 << 10;
/// Messages heard of one importer before the porter looks at the others, and whether it is to end. More than lie in a socket
/// at once (some 280, with the buffers that Linux has by default), so that catching up takes in all that was given back.
const MOST_HEARD: usize = 4096;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub(super) const FILES: u32 = 1;

const _: () = assert!(MIN_ALIGN == ipc::ALIGN);

thread_local! {
    /// Is this thread some pool's porter? Has no destructor.
    static PORTER: Cell<bool> = const { Cell::new(false) };
}

/// What the porter has been asked, and has done.
#[derive(Debug, Default)]
struct Bell {
    /// Times that somebody wanted it to catch up.
    asked: u64,
    /// Those after which it has looked at every line.
    done: u64,
    /// It ends, or has ended.
    closing: bool,
    /// By a panic.
    failed: bool,
}

/// The pool's side of its porter.
#[derive(Debug)]
pub(super) struct Door {
    /// The pool's number for other processes.
    number: [u64; 2],
    /// What programs get a copy of.
    far: OwnedFd,
    /// Wakes the porter.
    wake: Arc<Socket>,
    bell: Arc<(Ranked<Bell>, Condvar)>,
    thread: JoinHandle<()>,
}

/// Whether other processes may come in.
#[derive(Debug)]
pub(super) enum Entrance {
    /// The pool has not been exported yet.
    Closed,
    Open(Door),
    /// Nobody would end a porter any more: the pool has ended, or the process is about to.
    Shut {
        ended: bool,
    },
}

impl Entrance {
    fn door(&self) -> Option<&Door> {
        match self {
            Entrance::Open(door) => Some(door),
            Entrance::Closed | Entrance::Shut { .. } => None,
        }
    }
}

impl Door {
    fn open(pool: &Arc<Pool>, device: [u64; 2]) -> Result<Door, BackendError> {
        let number = socket::unique()?;
        let (near, far) = Socket::door(number)?;
        // importers knock there, and wait so long for room
        let far = far.that_waits()?;
        let (wake, woken) = Socket::pair()?;
        let welcome = Welcome {
            memory: pool.config.memory as u64,
            pool: number,
            device,
        };
        let bell = Arc::new((Ranked::new(Rank::Door, Bell::default()), Condvar::new()));
        let porter = Porter {
            pool: Arc::downgrade(pool),
            near: Some(near),
            woken,
            welcome,
            lines: Vec::new(),
        };
        let rung = bell.clone();
        let thread = Builder::new().name("weir-porter".into()).stack_size(STACK);
        let thread = thread.spawn(move || porter.work(&rung));
        let thread =
            thread.map_err(|error| BackendError::OutOfMemory(format!("no thread for an export: {error}")))?;
        Ok(Door {
            number,
            far: far.into(),
            wake: Arc::new(wake),
            bell,
            thread,
        })
    }
}

fn ring(wake: &Socket) {
    // if there is no room the porter has enough to wake it
    let _ = wake.send(&[0; 8], &[]);
}

/// An importer.
struct Line {
    socket: Socket,
    /// Its process.
    peer: Option<OwnedFd>,
    /// Its end is closed, and its process may still be there.
    closed: bool,
    /// What it has borrowed: addresses and numbers.
    loans: Vec<(u64, u64)>,
    /// What it asked for last.
    latest: (u64, u64),
    /// Pages of that which it has not fetched yet, the next one last.
    left: Vec<(PageHandle, u64)>,
}

impl Drop for Line {
    fn drop(&mut self) {
        self.socket.shut_down();
    }
}

struct Porter {
    pool: Weak<Pool>,
    /// None once somebody who has the far end has shut it down, which nobody can take back.
    near: Option<Socket>,
    woken: Socket,
    welcome: Welcome,
    lines: Vec<Line>,
}

impl Drop for Porter {
    fn drop(&mut self) {
        let Some(near) = &self.near else { return };
        near.shut_down();
        // whoever waits for an answer at the other end of what has come and not been heard
        while let Ok(Some(hello)) = ipc::receive(near) {
            hello
                .files
                .into_iter()
                .for_each(|file| Socket::of(file).shut_down());
        }
    }
}

impl Porter {
    fn work(mut self, bell: &(Ranked<Bell>, Condvar)) {
        PORTER.set(true);
        process::work_in_background();
        let rounds = || while self.round(bell).is_some() {};
        let failed = catch_unwind(AssertUnwindSafe(rounds)).is_err();
        // importers that wait for an answer find their lines closed
        drop(self);
        let mut state = bell.0.lock();
        (state.closing, state.failed) = (true, failed);
        drop(state);
        bell.1.notify_all();
    }

    /// Waits until there is something to do, and does it. None: nobody will ask again.
    fn round(&mut self, bell: &(Ranked<Bell>, Condvar)) -> Option<()> {
        let state = bell.0.lock();
        let (asked, behind) = (state.asked, state.asked > state.done);
        if state.closing {
            return None;
        }
        drop(state);
        self.look(behind)?;
        bell.0.lock().done = asked;
        bell.1.notify_all();
        Some(())
    }

    /// Does what there is to do on all lines. None: there is no pool any more, or nobody to ring.
    fn look(&mut self, behind: bool) -> Option<()> {
        // whoever rings has seen before what is to be found on the lines: so the bell is looked at first
        let near = self.near.as_ref().map_or(-1, Socket::as_raw_fd);
        let mut files: Vec<RawFd> = vec![self.woken.as_raw_fd(), near];
        files.extend(self.lines.iter().map(Line::awaited));
        let ready = socket::wait(&files, behind);
        // the program has closed what it does not know: nobody can wake the porter, which would be told so for ever
        if ready[0].closed || ready[0].lost {
            return None;
        }
        if ready[2..].iter().any(|line| line.lost) {
            self.lose(&ready[2..]);
            return self.look(behind);
        }
        let pool = self.pool.upgrade()?;
        if ready[0].readable {
            let _ = ipc::receive(&self.woken);
        }
        let mut there = ready[2..].iter();
        self.lines.retain_mut(|line| {
            let ready = there.next().expect("one for each line");
            let over = match line.closed {
                true => ready.readable || ready.closed,
                false => (ready.readable || ready.closed) && line.hear(&pool).is_none() && line.hangs_up(),
            };
            if over {
                line.loans.drain(..).for_each(|loan| pool.take_back(loan));
            }
            !over
        });
        if ready[1].lost {
            mem::forget(self.near.take()); // the number may be another file's by now
        }
        if (ready[1].readable || ready[1].closed)
            && let Some(near) = &self.near
        {
            match ipc::receive(near) {
                Ok(Some(mut hello)) => {
                    let file = hello.files.pop().filter(|_| hello.kind == Kind::Hello);
                    let line = file.and_then(|file| Line::open(Socket::of(file), self.welcome));
                    self.lines.extend(line);
                }
                _ if ready[1].closed => self.near = None,
                _ => {}
            }
        }
        Some(())
    }

    /// The program has closed lines of importers, who may go on using what they have: it stays lent until the pool ends, since nobody
    /// will hear that they are done. Nothing of these lines is closed, as the numbers may be other files' by now.
    fn lose(&mut self, ready: &[Ready]) {
        let mut ready = ready.iter();
        let lost = self
            .lines
            .extract_if(.., |_| ready.next().expect("one for each line").lost);
        lost.for_each(|mut line| {
            (line.loans, line.left) = (Vec::new(), Vec::new());
            mem::forget(line);
        });
    }
}

impl Line {
    /// With whoever is at the other end. None: nobody is any more.
    fn open(socket: Socket, welcome: Welcome) -> Option<Line> {
        let peer = socket.peer();
        let line = Line {
            socket,
            peer,
            closed: false,
            loans: Vec::new(),
            latest: (0, 0),
            left: Vec::new(),
        };
        line.say(Kind::Welcome, &welcome.words(), &[])?;
        Some(line)
    }

    fn awaited(&self) -> RawFd {
        match &self.peer {
            Some(peer) if self.closed => peer.as_raw_fd(),
            _ => self.socket.as_raw_fd(),
        }
    }

    /// The other end is closed. Is it all over, too?
    fn hangs_up(&mut self) -> bool {
        self.closed = true;
        self.loans.is_empty() || self.peer.is_none()
    }

    /// Does what the importer asks for, as long as it does, up to a bound. None: it is gone, talks nonsense, or takes away
    /// what it has sent.
    fn hear(&mut self, pool: &Pool) -> Option<()> {
        let more = |line: &Line| {
            let ready = socket::wait(&[line.socket.as_raw_fd()], true)[0];
            ready.readable || ready.closed
        };
        for _ in 0..MOST_HEARD {
            if !more(self) {
                break;
            }
            let message = ipc::receive(&self.socket).ok().flatten()?;
            self.serve(pool, &message)?;
        }
        Some(())
    }

    fn serve(&mut self, pool: &Pool, message: &Message) -> Option<()> {
        match (message.kind, &message.words[..]) {
            (Kind::Borrow, &[at, number]) => match pool.lend(at, number) {
                Some(Extent { pages, offset, bytes }) => {
                    self.loans.push((at, number));
                    self.latest = (at, number);
                    self.left = pages;
                    self.left.reverse();
                    self.say(Kind::Lent, &[self.left.len() as u64, offset, bytes], &[])
                }
                None => self.say(Kind::Gone, &[], &[]),
            },
            (Kind::Fetch, &[]) => self.hand_over(pool),
            (Kind::Return, &[at, number]) => {
                if let Some(index) = self.loans.iter().position(|loan| *loan == (at, number)) {
                    pool.take_back(self.loans.swap_remove(index));
                }
                // others may be given back while the pages of one are being fetched
                if !self.loans.contains(&self.latest) {
                    self.left.clear();
                }
                Some(())
            }
            (Kind::Event, &[event, number]) => {
                match pool.backend.event_file(EventHandle(event as usize), number) {
                    Ok(Some(file)) => self.say(Kind::Here, &[], &file.iter().collect::<Vec<_>>()),
                    Ok(None) => self.say(Kind::Gone, &[], &[]),
                    Err(error) => self.fail(&error),
                }
            }
            _ => None,
        }
    }

    /// Sends the next pages of a block. What was lent is given back by the importer, also if it cannot use it.
    fn hand_over(&mut self, pool: &Pool) -> Option<()> {
        let some = self.left.split_off(self.left.len().saturating_sub(MOST));
        let files = some.iter().rev().map(|page| pool.backend.export(page.0));
        match files.collect::<Result<Vec<OwnedFd>, _>>() {
            Ok(files) => {
                let words: Vec<u64> = some.iter().rev().map(|page| page.1).collect();
                self.say(Kind::Pages, &words, &files.iter().collect::<Vec<_>>())
            }
            Err(error) => self.fail(&error),
        }
    }

    fn fail(&self, error: &BackendError) -> Option<()> {
        self.say(Kind::Failed, &words_of(&error.to_string()), &[])
    }

    fn say(&self, kind: Kind, words: &[u64], files: &[&OwnedFd]) -> Option<()> {
        let sent = ipc::send(&self.socket, kind, words, files);
        (sent == Ok(true)).then_some(())
    }
}

impl Pool {
    /// A descriptor by which other processes can import the pool.
    pub fn export(self: &Arc<Pool>) -> Result<OwnedFd, Error> {
        let copy = self.with_door(|door| {
            let copy = door.far.try_clone();
            copy.map_err(|error| BackendError::OutOfMemory(format!("dup: {error}")))
        })?;
        match socket::wait(&[copy.as_raw_fd()], true)[0].closed {
            false => Ok(copy),
            true => Err(Error::Stale(
                "a process that has the pool's descriptor has shut it down, so nobody can import the pool any more".into(),
            )),
        }
    }

    /// A token by which a process that imports the pool can have a block.
    pub fn export_pointer(self: &Arc<Pool>, at: Addr) -> Result<Token, Error> {
        let pool = self.with_door(|door| Ok(door.number))?;
        let mut heap = self.books()?;
        let block = heap.find_block(at.0)?;
        Ok(Token {
            what: What::Block,
            pool,
            at: heap.block_start(block),
            number: heap.offer(block),
            bytes: heap.block_bytes(block),
            driver: [0; 8],
        })
    }

    /// A token by which a process that imports the pool can have an event of the program's.
    pub fn export_event(self: &Arc<Pool>, event: EventHandle) -> Result<Token, Error> {
        let pool = self.with_door(|door| Ok(door.number))?;
        let offered = self.backend.export_event(event);
        let (number, driver) = offered.map_err(|error| translate(error, StreamHandle(0)))?;
        Ok(Token {
            what: What::Event,
            pool,
            at: event.0 as u64,
            number,
            bytes: 0,
            driver,
        })
    }

    fn with_door<R>(self: &Arc<Pool>, f: impl FnOnce(&Door) -> Result<R, BackendError>) -> Result<R, Error> {
        if self.importer.is_some() {
            return Err(Error::NotSupported(format!(
                "pool \"{}\" is imported; what it has is exported by the process that made it",
                self.config.name
            )));
        }
        if self.config.ipc_handle_types & FILES == 0 {
            return Err(Error::NotSupported(format!(
                "pool \"{}\" was not made to be exported: create it with ipc_handle_types = 1",
                self.config.name
            )));
        }
        drop(self.books()?);
        if !self.backend.usable() {
            return Err(Error::Unloaded);
        }
        let mut device = [0; 2];
        let mut entrance = self.entrance.lock();
        if let Entrance::Closed = &*entrance {
            drop(entrance);
            let asked = self.backend.device_number();
            device = asked.map_err(|error| translate(error, StreamHandle(0)))?;
            entrance = self.entrance.lock();
        }
        // looked at under the lock: the pool may have ended meanwhile
        if let Entrance::Closed = &*entrance {
            let door = Door::open(self, device).map_err(|error| translate(error, StreamHandle(0)))?;
            *entrance = Entrance::Open(door);
        }
        let open = match &*entrance {
            Entrance::Open(open) => open,
            Entrance::Shut { ended: true } => return Err(Error::PoolDestroyed { handle: 0 }),
            Entrance::Closed | Entrance::Shut { ended: false } => return Err(Error::Unloaded),
        };
        let (answer, bell) = (f(open), open.bell.clone());
        drop(entrance);
        let state = bell.0.lock();
        let (failed, over) = (state.failed, state.closing);
        drop(state);
        if failed {
            return Err(Error::Internal(
                "the thread that answers importers has panicked, so the pool cannot be shared any more"
                    .into(),
            ));
        }
        if over && self.entrance.lock().door().is_some() {
            return Err(Error::Stale(
                "the program has closed descriptors of weir's, so the pool cannot be shared any more; close only what you have \
                 opened"
                    .into(),
            ));
        }
        answer.map_err(|error| translate(error, StreamHandle(0)))
    }

    fn lend(&self, at: u64, number: u64) -> Option<Extent> {
        self.books().ok()?.lend(at, number)
    }

    fn take_back(&self, (at, number): (u64, u64)) {
        let Ok(mut heap) = self.books() else { return };
        heap.end_loan(at, number);
        self.keep_to_threshold(heap);
    }

    /// Waits until all that importers have given back by now is.
    pub(super) fn catch_up(&self) {
        let lent = self.books_to_read().is_ok_and(|heap| heap.lent() > 0);
        if !lent || PORTER.get() {
            return;
        }
        let entrance = self.entrance.lock();
        let Some((bell, wake)) = entrance.door().map(|open| (open.bell.clone(), open.wake.clone())) else {
            return;
        };
        drop(entrance);
        let mut state = bell.0.lock();
        state.asked += 1;
        let mine = state.asked;
        ring(&wake);
        while state.done < mine && !state.closing {
            state = state.wait(&bell.1);
        }
    }

    /// Ends the porter for good, and waits for it. Importers then find the pool gone; what they have they keep.
    pub(super) fn shut_door(&self, ended: bool) {
        let shut = Entrance::Shut { ended };
        let before = std::mem::replace(&mut *self.entrance.lock(), shut);
        let Entrance::Open(door) = before else {
            return;
        };
        door.bell.0.lock().closing = true;
        door.bell.1.notify_all();
        ring(&door.wake);
        if !PORTER.get() {
            // a panic of its has been printed, and there is nobody else to tell
            let _ = door.thread.join();
        }
    }
}
