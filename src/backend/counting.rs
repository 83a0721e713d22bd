//! A backend without memory, for benchmarks and model tests of millions of operations: addresses are made
//! up, pages are numbers, every stream has nothing in flight. Nothing may be read or written through its
//! addresses.
//!
//! Memory may also come with its address, as that of `cuMemAlloc` does; each page then lies where a device might
//! put it, aligned to 512 B or more, and its address comes again.
//!
//! Invariants: ranges that are reserved at the same time do not overlap. With checks on, a call that breaks
//! the contract panics; with checks off, map and unmap only count.
//!
//! Locks: `addresses` and `books`, each taken alone, for a few instructions.

use super::call::{Call, Calls};
use super::ledger::Ledger;
use super::{Backend, BackendError, Event};
use crate::base::units::{Addr, PageHandle, StreamHandle, StreamId, Timeline};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const GRANULARITY: u64 = 2 << 20;
/// Where a GPU's addresses begin, and how many there are.
const FIRST: u64 = 1 << 40;
const SPACE: u64 = 125 << 40;
/// The end that the CUDA driver was measured to have.
const MAPPINGS: u64 = 524_032;

/// The counting backend.
#[derive(Debug)]
pub struct Counting {
    calls: Calls,
    /// Free addresses: start to length, never adjacent.
    addresses: Mutex<BTreeMap<u64, u64>>,
    books: Option<Mutex<Ledger>>,
    /// If memory comes with its address: what each page takes of `addresses`, start and bytes.
    placed: Option<Mutex<FxHashMap<PageHandle, (u64, u64)>>>,
    last_page: AtomicU64,
    of_a_page: AtomicUsize,
    created: AtomicU64,
    peak: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn take(free: &mut BTreeMap<u64, u64>, bytes: u64) -> Option<u64> {
    let (&at, &length) = free.iter().find(|&(_, &length)| length >= bytes)?;
    free.remove(&at);
    if length > bytes {
        free.insert(at + bytes, length - bytes);
    }
    Some(at)
}

fn give_back(free: &mut BTreeMap<u64, u64>, mut at: u64, mut bytes: u64) {
    if let Some(length) = free.remove(&(at + bytes)) {
        bytes += length;
    }
    if let Some((&before, &length)) = free.range(..at).next_back()
        && before + length == at
    {
        at = before;
        bytes += length;
    }
    free.insert(at, bytes);
}

impl Counting {
    /// A backend that keeps books and panics on a call that breaks the contract, or one that only counts.
    pub fn new(checked: bool) -> Arc<Counting> {
        Arc::new(Counting::bare(checked))
    }

    /// The same, with memory that comes with its address.
    pub fn with_addresses(checked: bool) -> Arc<Counting> {
        Arc::new(Counting {
            placed: Some(Mutex::default()),
            ..Counting::bare(checked)
        })
    }

    fn bare(checked: bool) -> Counting {
        Counting {
            calls: Calls::default(),
            addresses: Mutex::new(BTreeMap::from([(FIRST, SPACE)])),
            books: checked.then(|| Mutex::new(Ledger::new(GRANULARITY))),
            placed: None,
            last_page: AtomicU64::new(0),
            of_a_page: AtomicUsize::new(usize::MAX),
            created: AtomicU64::new(0),
            peak: AtomicU64::new(0),
        }
    }

    /// A page that is to be entered into the books.
    fn next_page(&self, bytes: u64) -> PageHandle {
        let now = self.created.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(now, Ordering::Relaxed);
        PageHandle(self.last_page.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// From now on no page bears more than so many mappings.
    pub fn limit_mappings_of_a_page(&self, most: usize) {
        self.of_a_page.store(most, Ordering::Relaxed);
        if let Some(books) = &self.books {
            lock(books).limit_mappings_of_a_page(most);
        }
    }

    /// Calls of one kind so far.
    pub fn calls(&self, kind: Call) -> u64 {
        self.calls.of(kind)
    }

    /// Calls of all kinds so far.
    pub fn total_calls(&self) -> u64 {
        self.calls.total()
    }

    /// Physical bytes that "exist".
    pub fn created_bytes(&self) -> u64 {
        self.created.load(Ordering::Relaxed)
    }

    /// The most physical bytes that ever "existed" at once.
    pub fn peak_created_bytes(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Reservations, pages and mappings that exist. With checks on only.
    pub fn left(&self) -> Option<(u64, u64, u64)> {
        let books = lock(self.books.as_ref()?);
        Some((books.reservations(), books.pages(), books.mappings()))
    }

    fn check<T, E: std::fmt::Display>(&self, entry: impl FnOnce(&mut Ledger) -> Result<T, E>) {
        if let Some(books) = &self.books {
            let answer = entry(&mut lock(books)).map(drop);
            answer.unwrap_or_else(|why| panic!("the backend contract was broken: {why}"));
        }
    }
}

impl Backend for Counting {
    fn name(&self) -> &'static str {
        "counting"
    }

    fn granularity(&self) -> u64 {
        GRANULARITY
    }

    fn mapping_limit(&self) -> u64 {
        MAPPINGS
    }

    fn mappings_of_a_page(&self) -> usize {
        self.of_a_page.load(Ordering::Relaxed)
    }

    fn usable(&self) -> bool {
        true
    }

    fn reserve(&self, bytes: u64) -> Result<Addr, BackendError> {
        self.calls.add(Call::Reserve);
        self.check(|books| books.can_size("reserve", bytes));
        let taken = take(&mut lock(&self.addresses), bytes);
        let Some(at) = taken else {
            return Err(BackendError::OutOfMemory(format!(
                "no {bytes} B of address space are left"
            )));
        };
        self.check(|books| books.reserve(Addr(at), bytes));
        Ok(Addr(at))
    }

    fn unreserve(&self, at: Addr, bytes: u64) -> Result<(), BackendError> {
        self.calls.add(Call::Unreserve);
        self.check(|books| books.unreserve(at, bytes));
        give_back(&mut lock(&self.addresses), at.0, bytes);
        Ok(())
    }

    fn create(&self, bytes: u64) -> Result<PageHandle, BackendError> {
        self.calls.add(Call::Create);
        self.check(|_| match self.placed {
            None => Ok(()),
            Some(_) => Err("create where memory comes with its address"),
        });
        let page = self.next_page(bytes);
        self.check(|books| books.create(page, bytes));
        Ok(page)
    }

    fn release(&self, page: PageHandle, bytes: u64) -> Result<(), BackendError> {
        self.calls.add(Call::Release);
        self.check(|books| books.release(page, bytes));
        self.created.fetch_sub(bytes, Ordering::Relaxed);
        let place = self.placed.as_ref().and_then(|placed| lock(placed).remove(&page));
        if let Some((at, bytes)) = place {
            give_back(&mut lock(&self.addresses), at, bytes);
        }
        Ok(())
    }

    fn map(&self, at: Addr, page: PageHandle, bytes: u64) -> Result<(), BackendError> {
        self.calls.add(Call::Map);
        self.check(|books| books.map(at, page, bytes));
        Ok(())
    }

    fn unmap(&self, at: Addr, bytes: u64) -> Result<(), BackendError> {
        self.calls.add(Call::Unmap);
        self.check(|books| books.unmap(at, bytes));
        Ok(())
    }

    fn timeline(&self, stream: StreamHandle) -> Result<Timeline, BackendError> {
        self.calls.add(Call::Timeline);
        Ok(Timeline::of(StreamId(stream.0 as u64)))
    }

    fn is_inert(&self, _stream: StreamId) -> bool {
        true
    }

    fn record(&self, _stream: StreamHandle) -> Result<Event, BackendError> {
        self.calls.add(Call::Record);
        Ok(Event::COMPLETE)
    }

    fn query(&self, _event: Event) -> Result<bool, BackendError> {
        self.calls.add(Call::Query);
        Ok(true)
    }

    fn wait(&self, _stream: StreamHandle, _event: Event) -> Result<(), BackendError> {
        self.calls.add(Call::Wait);
        Ok(())
    }

    fn synchronize(&self, _event: Event) -> Result<(), BackendError> {
        self.calls.add(Call::Synchronize);
        Ok(())
    }

    fn forget(&self, _event: Event) {}

    fn synchronize_all(&self) -> Result<(), BackendError> {
        self.calls.add(Call::SynchronizeAll);
        Ok(())
    }

    fn pages_have_addresses(&self) -> bool {
        self.placed.is_some()
    }

    fn create_at(&self, bytes: u64) -> Result<(Addr, PageHandle), BackendError> {
        self.calls.add(Call::Create);
        let Some(placed) = &self.placed else {
            return Err(BackendError::NotSupported("create_at without addresses".into()));
        };
        self.check(|books| books.can_size("create_at", bytes));
        let taken = take(&mut lock(&self.addresses), bytes + GRANULARITY);
        let Some(start) = taken else {
            return Err(BackendError::OutOfMemory(format!(
                "no {bytes} B of address space are left"
            )));
        };
        let page = self.next_page(bytes);
        // aligned as well as can be, hardly, and in between
        let at = Addr(start + [0, 512, GRANULARITY - 512, 64 << 10][page.0 as usize % 4]);
        lock(placed).insert(page, (start, bytes + GRANULARITY));
        self.check(|books| books.create_at(at, page, bytes));
        Ok((at, page))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const G: u64 = GRANULARITY;

    #[test]
    fn addresses_are_disjoint_and_come_back() {
        let b = Counting::new(true);
        let whole = b.reserve(SPACE).unwrap();
        assert!(matches!(b.reserve(G), Err(BackendError::OutOfMemory(_))));
        b.unreserve(whole, SPACE).unwrap();
        // The books would panic if two of these overlapped.
        let ranges: Vec<_> = (1..100).map(|n| (b.reserve(n * G).unwrap(), n * G)).collect();
        for &(at, bytes) in ranges.iter().step_by(2).chain(ranges.iter().skip(1).step_by(2)) {
            b.unreserve(at, bytes).unwrap();
        }
        assert_eq!(lock(&b.addresses).len(), 1);
        assert_eq!(b.reserve(SPACE), Ok(whole));
    }

    #[test]
    fn counts() {
        for checked in [true, false] {
            let b = Counting::new(checked);
            let at = b.reserve(4 * G).unwrap();
            let page = b.create(2 * G).unwrap();
            assert_ne!(b.create(G).unwrap(), page);
            b.map(at, page, 2 * G).unwrap();
            b.unmap(at, 2 * G).unwrap();
            b.release(page, 2 * G).unwrap();
            assert_eq!(
                (b.created_bytes(), b.peak_created_bytes(), b.total_calls()),
                (G, 3 * G, 6)
            );
            assert_eq!((b.calls(Call::Create), b.calls(Call::Wait)), (2, 0));
            assert_eq!(b.left(), checked.then_some((1, 1, 0)));
        }
    }

    #[test]
    fn memory_with_addresses_lies_apart_and_its_addresses_come_again() {
        let b = Counting::with_addresses(true);
        // The books would panic if two of these overlapped.
        let pages: Vec<_> = (1..100).map(|n| (b.create_at(n * G).unwrap(), n * G)).collect();
        let aligned = |align| pages.iter().filter(|page| page.0.0.0 % align == 0).count();
        assert_eq!((aligned(512), aligned(64 << 10), aligned(G)), (99, 49, 24));
        assert_eq!(b.left(), Some((0, 99, 0)));
        for ((_, page), bytes) in pages {
            b.release(page, bytes).unwrap();
        }
        assert_eq!((b.created_bytes(), lock(&b.addresses).len()), (0, 1));
        assert!(b.create_at(SPACE - G).is_ok());
    }

    #[test]
    #[should_panic(expected = "create where memory comes with its address")]
    fn create_without_an_address_panics_where_memory_has_one() {
        let _ = Counting::with_addresses(true).create(G);
    }

    #[test]
    #[should_panic(expected = "the backend contract was broken: map of")]
    fn map_over_a_mapped_address_panics() {
        let b = Counting::new(true);
        let (at, page) = (b.reserve(4 * G).unwrap(), b.create(G).unwrap());
        b.map(at, page, G).unwrap();
        let _ = b.map(at, page, G);
    }

    #[test]
    #[should_panic(expected = "in part")]
    fn unmap_of_half_a_mapping_panics() {
        let b = Counting::new(true);
        let (at, page) = (b.reserve(4 * G).unwrap(), b.create(2 * G).unwrap());
        b.map(at, page, 2 * G).unwrap();
        let _ = b.unmap(at, G);
    }

    #[test]
    #[should_panic(expected = "which is mapped at 1 addresses")]
    fn release_while_mapped_panics() {
        let b = Counting::new(true);
        let (at, page) = (b.reserve(4 * G).unwrap(), b.create(2 * G).unwrap());
        b.map(at, page, 2 * G).unwrap();
        let _ = b.release(page, 2 * G);
    }

    #[test]
    #[should_panic(expected = "still mapped")]
    fn unreserve_with_a_mapping_panics() {
        let b = Counting::new(true);
        let (at, page) = (b.reserve(4 * G).unwrap(), b.create(2 * G).unwrap());
        b.map(at, page, 2 * G).unwrap();
        let _ = b.unreserve(at, 4 * G);
    }
}
