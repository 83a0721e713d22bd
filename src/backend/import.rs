//! A decorator: memory that another process made. It comes with its address, as a *window*: the pages of one borrowed
//! block, mapped side by side; released, it is unmapped and the block is given back. No other memory can be had.
//!
//! Invariants: `windows` holds what was borrowed and not given back; a window's addresses are reserved for it alone, so an
//! importer takes as many as it maps. What was borrowed is given back to the exporter when its window goes, or by the end
//! of the line, when this process ends. Whoever is to borrow has a [`Stay`] until the pool has noted the window, or has given it
//! back: the pool may end meanwhile, and nobody waits for another process to end it.
//!
//! Locks: `borrowing`, while the pages of one block are asked for and imported; then `line`, across a question and its
//! answer, which waits for the other process. `windows`, alone, for a look into the table; `stays`, alone, for a count.

use super::ipc::socket::{Socket, no_room};
use super::ipc::token::Token;
use super::ipc::{self, Kind, Message, Welcome};
use super::{Access, Backend, BackendError, Event};
use crate::base::units::{Addr, EventHandle, PageHandle, StreamHandle, StreamId, Timeline};
use rustc_hash::FxHashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Why nothing could be imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// What was given is not what it should be.
    Invalid(String),
    /// It was once, and is no more.
    Stale(String),
    /// The exporter, or a call, failed.
    Failed(BackendError),
}

impl From<BackendError> for Refusal {
    fn from(error: BackendError) -> Refusal {
        Refusal::Failed(error)
    }
}

/// The connection to an exporter.
#[derive(Debug)]
pub struct Line {
    socket: Socket,
    /// What it said of itself.
    pub welcome: Welcome,
}

impl Drop for Line {
    fn drop(&mut self) {
        self.socket.shut_down();
    }
}

fn gone() -> Refusal {
    Refusal::Stale("the exporting pool has ended, or its process has".into())
}

fn nonsense() -> Refusal {
    BackendError::Other("the exporter's answer makes no sense".into()).into()
}

impl Line {
    /// Goes through a door.
    pub fn open(door: &Socket) -> Result<Line, Refusal> {
        let (socket, other) = Socket::pair()?;
        let socket = socket.that_waits()?;
        if !ipc::send(door, Kind::Hello, &[ipc::VERSION], &[&other.into()])? {
            return Err(Refusal::Stale(
                "the exporting pool has ended, or its process has, or somebody who has the descriptor has shut it down".into(),
            ));
        }
        let answer = ipc::receive(&socket)?.ok_or_else(gone)?;
        match Welcome::read(&answer) {
            Some(welcome) => Ok(Line { socket, welcome }),
            None => Err(Refusal::Invalid("the exporter is another version of weir".into())),
        }
    }

    /// Asks, and waits for the answer. An error is one of the line: it is of no use any more.
    fn ask(&self, kind: Kind, words: &[u64]) -> Result<Message, Refusal> {
        match ipc::send(&self.socket, kind, words, &[])? {
            true => ipc::receive(&self.socket)?.ok_or_else(gone),
            false => Err(gone()),
        }
    }
}

/// The answer that was wanted, or what the exporter says instead.
fn wanted(answer: Message, kind: Kind, what: &str) -> Result<Message, Refusal> {
    match answer.kind {
        _ if answer.lost => Err(no_room().into()),
        got if got == kind => Ok(answer),
        Kind::Gone => Err(Refusal::Stale(what.into())),
        Kind::Failed => Err(BackendError::Other(format!("the exporter: {}", answer.text())).into()),
        _ => Err(nonsense()),
    }
}

/// A borrowed block, in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// First address of the window.
    pub at: Addr,
    /// Its name.
    pub handle: PageHandle,
    /// Its bytes.
    pub bytes: u64,
    /// Address of the block.
    pub block: Addr,
    /// Bytes of the block.
    pub len: u64,
}

/// What there is behind a window.
#[derive(Debug)]
struct Pages {
    at: Addr,
    bytes: u64,
    /// From the first address on, without a gap.
    mapped: u64,
    pages: Vec<(PageHandle, u64)>,
    /// The exporter's address and number of the block.
    block: (u64, u64),
}

/// Memory of another process.
#[derive(Debug)]
pub struct Importer {
    inner: Arc<dyn Backend>,
    welcome: Welcome,
    /// None: closed.
    line: Mutex<Option<Line>>,
    /// Held from one block's first question to its last.
    borrowing: Mutex<()>,
    windows: Mutex<(u64, FxHashMap<PageHandle, Pages>)>,
    stays: Mutex<Stays>,
}

#[derive(Debug, Default)]
struct Stays {
    count: usize,
    /// The last one closes.
    closing: bool,
}

/// An importer that does not close before this is dropped.
pub struct Stay<'a>(&'a Importer);

impl Deref for Stay<'_> {
    type Target = Importer;
    fn deref(&self) -> &Importer {
        self.0
    }
}

impl Drop for Stay<'_> {
    fn drop(&mut self) {
        let mut stays = lock(&self.0.stays);
        stays.count -= 1;
        let closes = stays.count == 0 && std::mem::take(&mut stays.closing);
        drop(stays);
        if closes {
            self.0.close_now();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Importer {
    /// Memory that comes through `line`, mapped by `inner`.
    pub fn new(line: Line, inner: Arc<dyn Backend>) -> Arc<Importer> {
        Arc::new(Importer {
            inner,
            welcome: line.welcome,
            line: Mutex::new(Some(line)),
            borrowing: Mutex::default(),
            windows: Mutex::default(),
            stays: Mutex::default(),
        })
    }

    /// Puts off [`Backend::close`], unless it has been called.
    pub fn stay(&self) -> Stay<'_> {
        lock(&self.stays).count += 1;
        Stay(self)
    }

    fn close_now(&self) {
        // windows that could not be given back keep the block borrowed until the process ends
        if lock(&self.windows).1.is_empty() {
            drop(lock(&self.line).take());
        }
        self.inner.close();
    }

    fn check(&self, token: &Token) -> Result<(), Refusal> {
        if token.pool == self.welcome.pool {
            return Ok(());
        }
        Err(Refusal::Invalid(
            "it is of another pool than the imported one".into(),
        ))
    }

    /// Borrows the block of a token and maps it.
    pub fn borrow(&self, token: &Token) -> Result<Window, Refusal> {
        self.check(token)?;
        let block = (token.at, token.number);
        let mut pages = Pages {
            at: Addr(0),
            bytes: 0,
            mapped: 0,
            pages: Vec::new(),
            block,
        };
        let (offset, imported) = self.fetch(&mut pages, token.bytes)?;
        let mapped = imported.and_then(|()| self.map_all(&mut pages).map_err(Refusal::from));
        if let Err(error) = mapped {
            // what cannot be given back now is left to the end of the process, as is the block
            if self.let_go(&mut pages).is_ok() {
                self.give_back(block);
            }
            return Err(error);
        }
        let (at, bytes) = (pages.at, pages.bytes);
        let mut windows = lock(&self.windows);
        windows.0 += 1;
        let handle = PageHandle(windows.0);
        windows.1.insert(handle, pages);
        Ok(Window {
            at,
            handle,
            bytes,
            block: Addr(at.0 + offset),
            len: token.bytes,
        })
    }

    /// One question and its answer. A line that fails is closed: who knows what would be the answer to what?
    fn ask(&self, kind: Kind, words: &[u64]) -> Result<Message, Refusal> {
        let mut line = lock(&self.line);
        let answer = line.as_ref().ok_or_else(gone)?.ask(kind, words);
        if answer.is_err() {
            *line = None;
        }
        answer
    }

    /// Borrows a block of these bytes and imports its pages: where in them it lies, and whether all could be imported. Once
    /// this has succeeded the block is borrowed.
    fn fetch(&self, pages: &mut Pages, bytes: u64) -> Result<(u64, Result<(), Refusal>), Refusal> {
        let _alone = lock(&self.borrowing);
        let words = [pages.block.0, pages.block.1];
        let freed = "the block has been freed by the process that exported it";
        let lent = wanted(self.ask(Kind::Borrow, &words)?, Kind::Lent, freed)?;
        let &[count, offset, len] = &lent.words[..] else {
            return Err(nonsense());
        };
        let imported = self.fetch_pages(pages, count).and_then(|()| {
            // the exporter may lie, and the books of this process must stay right
            let inside = offset.checked_add(len).is_some_and(|end| end <= pages.bytes);
            match inside && len > 0 && len == bytes && offset.is_multiple_of(ipc::ALIGN) {
                true => Ok(()),
                false => Err(nonsense()),
            }
        });
        Ok((offset, imported))
    }

    fn fetch_pages(&self, pages: &mut Pages, count: u64) -> Result<(), Refusal> {
        while (pages.pages.len() as u64) < count {
            let some = wanted(self.ask(Kind::Fetch, &[])?, Kind::Pages, "the block is gone")?;
            if some.words.is_empty() || some.words.len() != some.files.len() {
                return Err(nonsense());
            }
            for (file, bytes) in some.files.into_iter().zip(some.words) {
                let sum = pages.bytes.checked_add(bytes).ok_or_else(nonsense)?;
                pages.pages.push((self.inner.import(file, bytes)?, bytes));
                pages.bytes = sum;
            }
        }
        Ok(())
    }

    fn map_all(&self, pages: &mut Pages) -> Result<(), BackendError> {
        pages.at = self.inner.reserve(pages.bytes)?;
        for &(page, bytes) in &pages.pages {
            self.inner.map(Addr(pages.at.0 + pages.mapped), page, bytes)?;
            pages.mapped += bytes;
        }
        Ok(())
    }

    /// Gives all of a window back to the inner backend, or as much as can be.
    fn let_go(&self, pages: &mut Pages) -> Result<(), BackendError> {
        if pages.mapped > 0 {
            self.inner.unmap(pages.at, pages.mapped)?;
            pages.mapped = 0;
        }
        if pages.at != Addr(0) {
            self.inner.unreserve(pages.at, pages.bytes)?;
            pages.at = Addr(0);
        }
        while let Some(&(page, bytes)) = pages.pages.last() {
            self.inner.release(page, bytes)?;
            pages.pages.pop();
        }
        Ok(())
    }

    /// Tells the exporter. If it is gone nobody needs to know.
    fn give_back(&self, block: (u64, u64)) {
        if let Some(line) = &*lock(&self.line) {
            let _ = ipc::send(&line.socket, Kind::Return, &[block.0, block.1], &[]);
        }
    }

    /// The event of a token, opened in this process. It belongs to the program.
    pub fn event(&self, token: &Token) -> Result<EventHandle, Refusal> {
        self.check(token)?;
        let destroyed = "the event has been destroyed by the process that exported it";
        let here = self.ask(Kind::Event, &[token.at, token.number])?;
        let mut here = wanted(here, Kind::Here, destroyed)?;
        Ok(self.inner.import_event(here.files.pop(), token.driver)?)
    }
}

impl Backend for Importer {
    fn name(&self) -> &'static str {
        self.inner.name()
    }
    fn granularity(&self) -> u64 {
        self.inner.granularity()
    }
    fn mapping_limit(&self) -> u64 {
        self.inner.mapping_limit()
    }
    fn mappings_of_a_page(&self) -> usize {
        self.inner.mappings_of_a_page()
    }
    fn usable(&self) -> bool {
        self.inner.usable()
    }
    fn now(&self) -> Instant {
        self.inner.now()
    }
    fn is_lost(&self) -> bool {
        self.inner.is_lost()
    }
    fn reserve(&self, _bytes: u64) -> Result<Addr, BackendError> {
        Err(BackendError::NotSupported(
            "an imported pool maps windows only".into(),
        ))
    }
    fn unreserve(&self, _at: Addr, _bytes: u64) -> Result<(), BackendError> {
        Err(BackendError::NotSupported(
            "an imported pool maps windows only".into(),
        ))
    }
    fn create(&self, _bytes: u64) -> Result<PageHandle, BackendError> {
        Err(BackendError::NotSupported(
            "an imported pool creates nothing".into(),
        ))
    }
    fn release(&self, window: PageHandle, _bytes: u64) -> Result<(), BackendError> {
        let pages = lock(&self.windows).1.remove(&window);
        let mut pages =
            pages.ok_or_else(|| BackendError::Other(format!("window {} was given back", window.0)))?;
        let result = self.let_go(&mut pages);
        match result {
            Ok(()) => self.give_back(pages.block),
            Err(_) => drop(lock(&self.windows).1.insert(window, pages)),
        }
        result
    }
    fn map(&self, _at: Addr, _page: PageHandle, _bytes: u64) -> Result<(), BackendError> {
        Err(BackendError::NotSupported(
            "an imported pool maps windows only".into(),
        ))
    }
    fn unmap(&self, _at: Addr, _bytes: u64) -> Result<(), BackendError> {
        Err(BackendError::NotSupported(
            "an imported pool maps windows only".into(),
        ))
    }
    fn timeline(&self, stream: StreamHandle) -> Result<Timeline, BackendError> {
        self.inner.timeline(stream)
    }
    fn is_still(&self, stream: StreamHandle, line: Timeline) -> bool {
        self.inner.is_still(stream, line)
    }
    fn is_inert(&self, stream: StreamId) -> bool {
        self.inner.is_inert(stream)
    }
    fn is_built_in(&self, stream: StreamHandle) -> bool {
        self.inner.is_built_in(stream)
    }

    fn is_of_thread(&self, stream: StreamHandle) -> bool {
        self.inner.is_of_thread(stream)
    }
    fn has_work(&self, stream: StreamHandle, line: Timeline) -> Option<bool> {
        self.inner.has_work(stream, line)
    }
    fn record(&self, stream: StreamHandle) -> Result<Event, BackendError> {
        self.inner.record(stream)
    }
    fn query(&self, event: Event) -> Result<bool, BackendError> {
        self.inner.query(event)
    }
    fn wait(&self, stream: StreamHandle, event: Event) -> Result<(), BackendError> {
        self.inner.wait(stream, event)
    }
    fn synchronize(&self, event: Event) -> Result<(), BackendError> {
        self.inner.synchronize(event)
    }
    fn forget(&self, event: Event) {
        self.inner.forget(event);
    }
    fn synchronize_all(&self) -> Result<(), BackendError> {
        self.inner.synchronize_all()
    }
    fn blocks_in_one_page(&self) -> bool {
        true
    }
    fn pages_have_addresses(&self) -> bool {
        true
    }
    fn set_access(&self, device: i32, access: Access) -> Result<(), BackendError> {
        self.inner.set_access(device, access)
    }
    fn access(&self, device: i32) -> Result<Access, BackendError> {
        self.inner.access(device)
    }
    fn close(&self) {
        let mut stays = lock(&self.stays);
        stays.closing = stays.count > 0;
        if !stays.closing {
            drop(stays);
            self.close_now();
        }
    }
}
