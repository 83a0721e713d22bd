//! What a backend has given out: reservations, pages and mappings, and the checks of the contract's
//! preconditions against them. `host` turns a broken precondition into an error, `counting` panics.
//!
//! Invariants ([`Ledger::validate`]):
//! - reservations do not overlap; neither do mappings; each mapping lies in one reservation;
//! - a mapping is as long as its page; `page.mappings` = the mappings that name the page;
//! - a page that came with its address is mapped nowhere else, and overlaps no other of them and no reservation;
//! - `created` = Σ `page.bytes` ≤ `peak`.
//!
//! Locks: none; the owner keeps it under one of its own.

use crate::base::units::{Addr, PageHandle};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// What a page that comes with its address is aligned to.
const PLACED_ALIGN: u64 = 512;

#[derive(Clone, Copy, Debug)]
struct Page {
    bytes: u64,
    mappings: u64,
    /// The address that it came with.
    at: Option<Addr>,
}

#[derive(Clone, Copy, Debug)]
struct Mapping {
    bytes: u64,
    page: PageHandle,
}

/// The books of one backend. A method that changes them checks first, and changes nothing if the check
/// fails; the error is a sentence that names the values.
#[derive(Debug)]
pub struct Ledger {
    granularity: u64,
    reservations: BTreeMap<u64, u64>,
    pages: FxHashMap<PageHandle, Page>,
    mappings: BTreeMap<u64, Mapping>,
    /// Pages that came with their addresses: address to bytes.
    placed: BTreeMap<u64, u64>,
    reserved: u64,
    created: u64,
    peak: u64,
    /// How many mappings a page may have.
    of_a_page: u64,
}

impl Ledger {
    /// Empty books.
    pub fn new(granularity: u64) -> Ledger {
        Ledger {
            granularity,
            reservations: BTreeMap::new(),
            pages: FxHashMap::default(),
            mappings: BTreeMap::new(),
            placed: BTreeMap::new(),
            reserved: 0,
            created: 0,
            peak: 0,
            of_a_page: u64::MAX,
        }
    }

    /// From now on no page may have more mappings than this.
    pub fn limit_mappings_of_a_page(&mut self, most: usize) {
        self.of_a_page = most as u64;
    }

    /// Reservations that exist.
    pub fn reservations(&self) -> u64 {
        self.reservations.len() as u64
    }

    /// Bytes of address space reserved.
    pub fn reserved_bytes(&self) -> u64 {
        self.reserved
    }

    /// Pages that exist.
    pub fn pages(&self) -> u64 {
        self.pages.len() as u64
    }

    /// Physical bytes that exist.
    pub fn created_bytes(&self) -> u64 {
        self.created
    }

    /// The most physical bytes that ever existed at once.
    pub fn peak_created_bytes(&self) -> u64 {
        self.peak
    }

    /// Mappings that exist.
    pub fn mappings(&self) -> u64 {
        self.mappings.len() as u64
    }

    /// Is this a size that a backend accepts?
    pub fn can_size(&self, call: &str, bytes: u64) -> Result<(), String> {
        if bytes == 0 || !bytes.is_multiple_of(self.granularity) {
            return Err(format!(
                "{call} of {bytes} B: not a positive multiple of {} B",
                self.granularity
            ));
        }
        Ok(())
    }

    fn can_range(&self, call: &str, at: Addr, bytes: u64) -> Result<(), String> {
        self.can_size(call, bytes)?;
        if !at.0.is_multiple_of(self.granularity) || at.0.checked_add(bytes).is_none() {
            return Err(format!(
                "{call} of {bytes} B at {at}: not aligned to {} B",
                self.granularity
            ));
        }
        Ok(())
    }

    /// Does neither a reservation nor a page that came with its address lie there?
    fn is_unused(&self, call: &str, at: Addr, bytes: u64) -> Result<(), String> {
        for taken in [&self.reservations, &self.placed] {
            if let Some((&other, &size)) = taken.range(..at.0 + bytes).next_back()
                && other + size > at.0
            {
                return Err(format!(
                    "{call} gave {at} of {bytes} B, which overlaps {size} B at {other:#x}"
                ));
            }
        }
        Ok(())
    }

    /// Enters a reservation.
    pub fn reserve(&mut self, at: Addr, bytes: u64) -> Result<(), String> {
        self.can_range("reserve", at, bytes)?;
        self.is_unused("reserve", at, bytes)?;
        self.reservations.insert(at.0, bytes);
        self.reserved += bytes;
        Ok(())
    }

    /// May this range be given back?
    pub fn can_unreserve(&self, at: Addr, bytes: u64) -> Result<(), String> {
        match self.reservations.get(&at.0) {
            Some(&size) if size == bytes => {}
            Some(&size) => {
                return Err(format!(
                    "unreserve of {bytes} B at {at}, where {size} B are reserved"
                ));
            }
            None => return Err(format!("unreserve of {bytes} B at {at}, which is no reservation")),
        }
        if let Some((first, mapping)) = self.mappings.range(at.0..at.0 + bytes).next() {
            let size = mapping.bytes;
            return Err(format!(
                "unreserve of {bytes} B at {at} with {size} B still mapped at {first:#x}"
            ));
        }
        Ok(())
    }

    /// Strikes a reservation out.
    pub fn unreserve(&mut self, at: Addr, bytes: u64) -> Result<(), String> {
        self.can_unreserve(at, bytes)?;
        self.reservations.remove(&at.0);
        self.reserved -= bytes;
        Ok(())
    }

    /// Enters a page.
    pub fn create(&mut self, page: PageHandle, bytes: u64) -> Result<(), String> {
        self.can_size("create", bytes)?;
        if let Some(old) = self.pages.get(&page) {
            return Err(format!("create gave {page:?}, which exists with {} B", old.bytes));
        }
        let entry = Page {
            bytes,
            mappings: 0,
            at: None,
        };
        self.pages.insert(page, entry);
        self.created += bytes;
        self.peak = self.peak.max(self.created);
        Ok(())
    }

    /// Enters a page that came with its address.
    pub fn create_at(&mut self, at: Addr, page: PageHandle, bytes: u64) -> Result<(), String> {
        if !at.0.is_multiple_of(PLACED_ALIGN) || at.0.checked_add(bytes).is_none() {
            return Err(format!(
                "create_at gave {at} for {bytes} B: not aligned to {PLACED_ALIGN} B"
            ));
        }
        self.is_unused("create_at", at, bytes)?;
        self.create(page, bytes)?;
        self.pages.entry(page).and_modify(|page| page.at = Some(at));
        self.placed.insert(at.0, bytes);
        Ok(())
    }

    /// May this page be given back?
    pub fn can_release(&self, page: PageHandle, bytes: u64) -> Result<(), String> {
        match self.pages.get(&page) {
            None => Err(format!("release of {page:?}, which does not exist")),
            Some(known) if known.bytes != bytes => Err(format!(
                "release of {page:?} as {bytes} B; it has {} B",
                known.bytes
            )),
            Some(known) if known.mappings > 0 => Err(format!(
                "release of {page:?} ({bytes} B), which is mapped at {} addresses",
                known.mappings
            )),
            Some(_) => Ok(()),
        }
    }

    /// Strikes a page out.
    pub fn release(&mut self, page: PageHandle, bytes: u64) -> Result<(), String> {
        self.can_release(page, bytes)?;
        let at = self.pages.remove(&page).and_then(|page| page.at);
        at.and_then(|at| self.placed.remove(&at.0));
        self.created -= bytes;
        Ok(())
    }

    /// May this page be mapped there?
    pub fn can_map(&self, at: Addr, page: PageHandle, bytes: u64) -> Result<(), String> {
        self.can_range("map", at, bytes)?;
        let Some(known) = self.pages.get(&page) else {
            return Err(format!("map of {page:?} at {at}: the page does not exist"));
        };
        if known.bytes != bytes {
            return Err(format!(
                "map of {bytes} B of {page:?} at {at}; the page has {} B",
                known.bytes
            ));
        }
        if known.mappings >= self.of_a_page {
            return Err(format!(
                "map of {page:?} at {at}, which has {} mappings already",
                known.mappings
            ));
        }
        if let Some(place) = known.at {
            return Err(format!(
                "map of {page:?} at {at}; it came with its address, {place}"
            ));
        }
        let inside = self.reservations.range(..=at.0).next_back();
        if inside.is_none_or(|(start, size)| start + size < at.0 + bytes) {
            return Err(format!(
                "map of {bytes} B at {at}, which is not inside one reservation"
            ));
        }
        if let Some((other, mapping)) = self.mappings.range(..at.0 + bytes).next_back()
            && other + mapping.bytes > at.0
        {
            let size = mapping.bytes;
            return Err(format!(
                "map of {bytes} B at {at}, but {size} B are mapped at {other:#x}"
            ));
        }
        Ok(())
    }

    /// Enters a mapping.
    pub fn map(&mut self, at: Addr, page: PageHandle, bytes: u64) -> Result<(), String> {
        self.can_map(at, page, bytes)?;
        self.mappings.insert(at.0, Mapping { bytes, page });
        if let Some(known) = self.pages.get_mut(&page) {
            known.mappings += 1;
        }
        Ok(())
    }

    /// May this range be unmapped? The answer is how many mappings it consists of.
    pub fn can_unmap(&self, at: Addr, bytes: u64) -> Result<u64, String> {
        self.can_range("unmap", at, bytes)?;
        let end = at.0 + bytes;
        let (mut next, mut count) = (at.0, 0);
        for (&start, mapping) in self.mappings.range(at.0..end) {
            if start != next {
                break;
            }
            next = start + mapping.bytes;
            count += 1;
        }
        if next == end {
            return Ok(count);
        }
        let why = match self.mappings.range(..=next.min(end - 1)).next_back() {
            Some((start, mapping)) if start + mapping.bytes > next.min(end - 1) => {
                format!(
                    "{} B are mapped at {start:#x}, and would be unmapped in part",
                    mapping.bytes
                )
            }
            _ => format!("nothing is mapped at {next:#x}"),
        };
        Err(format!("unmap of {bytes} B at {at}: {why}"))
    }

    /// Strikes the mappings of a range out, and says how many they were.
    pub fn unmap(&mut self, at: Addr, bytes: u64) -> Result<u64, String> {
        let count = self.can_unmap(at, bytes)?;
        while let Some((&start, &mapping)) = self.mappings.range(at.0..at.0 + bytes).next() {
            self.mappings.remove(&start);
            if let Some(known) = self.pages.get_mut(&mapping.page) {
                known.mappings -= 1;
            }
        }
        Ok(count)
    }

    /// Checks the invariants.
    ///
    /// # Panics
    /// When one does not hold.
    pub fn validate(&self) {
        let disjoint = |ranges: &mut dyn Iterator<Item = (u64, u64)>, what: &str| {
            let mut end = 0;
            for (at, bytes) in ranges {
                assert!(
                    at >= end,
                    "{what} at {at:#x} begins before {end:#x}, where the last one ends"
                );
                end = at + bytes;
            }
        };
        disjoint(
            &mut self.reservations.iter().map(|(&at, &bytes)| (at, bytes)),
            "reservation",
        );
        disjoint(
            &mut self.placed.iter().map(|(&at, &bytes)| (at, bytes)),
            "page with an address",
        );
        for (&at, &bytes) in &self.placed {
            let before = self.reservations.range(..at + bytes).next_back();
            assert!(
                before.is_none_or(|(start, size)| start + size <= at),
                "at {at:#x}"
            );
        }
        let placed = self
            .pages
            .values()
            .filter_map(|page| Some((page.at?.0, page.bytes)));
        assert_eq!(placed.collect::<BTreeMap<_, _>>(), self.placed);
        disjoint(&mut self.mappings.iter().map(|(&at, m)| (at, m.bytes)), "mapping");
        let mut named: FxHashMap<PageHandle, u64> = FxHashMap::default();
        for (&at, mapping) in &self.mappings {
            *named.entry(mapping.page).or_default() += 1;
            assert_eq!(
                self.pages.get(&mapping.page).map(|p| p.bytes),
                Some(mapping.bytes),
                "at {at:#x}"
            );
            let inside = self.reservations.range(..=at).next_back();
            assert!(
                inside.is_some_and(|(start, size)| start + size >= at + mapping.bytes),
                "at {at:#x}"
            );
        }
        for (page, known) in &self.pages {
            assert_eq!(known.mappings, named.get(page).copied().unwrap_or(0), "{page:?}");
        }
        assert_eq!(self.created, self.pages.values().map(|p| p.bytes).sum::<u64>());
        assert_eq!(self.reserved, self.reservations.values().sum::<u64>());
        assert!(self.created <= self.peak);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const G: u64 = 2 << 20;
    const AT: Addr = Addr(64 * G);

    fn at(n: u64) -> Addr {
        Addr(AT.0 + n * G)
    }

    fn books() -> Ledger {
        let mut books = Ledger::new(G);
        books.reserve(AT, 16 * G).unwrap();
        books.create(PageHandle(1), G).unwrap();
        books.create(PageHandle(2), 2 * G).unwrap();
        books
    }

    #[test]
    fn refuses_what_the_contract_forbids_and_changes_nothing() {
        let mut b = books();
        b.map(at(0), PageHandle(1), G).unwrap();
        b.map(at(1), PageHandle(2), 2 * G).unwrap();
        b.map(at(3), PageHandle(1), G).unwrap();
        let refused: Vec<Result<(), String>> = vec![
            b.reserve(at(15), G),
            b.reserve(Addr(AT.0 - G), 2 * G),
            b.reserve(Addr(1), G),
            b.create(PageHandle(1), G),
            b.create(PageHandle(3), 0),
            b.create(PageHandle(3), G + 1),
            b.release(PageHandle(1), G),
            b.release(PageHandle(9), G),
            b.map(at(0), PageHandle(1), G),
            b.map(at(2), PageHandle(1), G),
            b.map(at(15), PageHandle(2), 2 * G),
            b.map(at(16), PageHandle(1), G),
            b.map(at(5), PageHandle(2), G),
            b.map(at(5), PageHandle(9), G),
            b.unreserve(AT, 16 * G),
            b.unreserve(AT, 15 * G),
            b.unreserve(at(1), 15 * G),
            b.unmap(at(1), G).map(drop),
            b.unmap(at(2), G).map(drop),
            b.unmap(at(0), 2 * G).map(drop),
            b.unmap(at(2), 2 * G).map(drop),
            b.unmap(at(0), 5 * G).map(drop),
            b.unmap(at(4), G).map(drop),
            b.unmap(at(0), 0).map(drop),
        ];
        for (n, answer) in refused.iter().enumerate() {
            assert!(answer.is_err(), "case {n} was accepted");
        }
        b.validate();
        assert_eq!((b.mappings(), b.pages(), b.reservations()), (3, 2, 1));
        assert_eq!(b.unmap(at(0), 4 * G), Ok(3));
        b.validate();
        b.release(PageHandle(1), G).unwrap();
        b.release(PageHandle(2), 2 * G).unwrap();
        b.unreserve(AT, 16 * G).unwrap();
        b.validate();
        assert_eq!(
            (b.created_bytes(), b.peak_created_bytes(), b.reserved_bytes()),
            (0, 3 * G, 0)
        );
    }

    #[test]
    fn pages_with_addresses_lie_apart_and_are_mapped_nowhere_else() {
        let mut b = books();
        let place = Addr(AT.0 + 16 * G + 512);
        b.create_at(place, PageHandle(3), 2 * G).unwrap();
        let refused: Vec<Result<(), String>> = vec![
            b.create_at(place, PageHandle(4), G),
            b.create_at(Addr(place.0 + 2 * G - 512), PageHandle(4), G),
            b.create_at(Addr(AT.0 + 512), PageHandle(4), G),
            b.create_at(Addr(place.0 + 2 * G + 256), PageHandle(4), G),
            b.create_at(at(20), PageHandle(3), G),
            b.create_at(at(20), PageHandle(4), G + 512),
            b.reserve(at(18), G),
            b.map(at(0), PageHandle(3), 2 * G),
            b.unmap(at(17), G).map(drop),
            b.release(PageHandle(3), G),
        ];
        for (n, answer) in refused.iter().enumerate() {
            assert!(answer.is_err(), "case {n} was accepted");
        }
        b.validate();
        assert_eq!((b.pages(), b.created_bytes()), (3, 5 * G));
        b.release(PageHandle(3), 2 * G).unwrap();
        b.create_at(place, PageHandle(3), G).unwrap();
        b.validate();
    }

    #[test]
    fn unmap_says_what_is_in_the_way() {
        let mut b = books();
        b.map(at(0), PageHandle(1), G).unwrap();
        b.map(at(1), PageHandle(2), 2 * G).unwrap();
        assert!(b.unmap(at(0), 2 * G).unwrap_err().contains("in part"));
        assert!(b.unmap(at(2), G).unwrap_err().contains("in part"));
        assert!(
            b.unmap(at(0), 4 * G)
                .unwrap_err()
                .contains(&format!("nothing is mapped at {}", at(3)))
        );
    }
}
