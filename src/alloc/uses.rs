//! Who used which bytes of which page last, among the calls of a round that several streams make (`company`). A page may be mapped at
//! several addresses, so it is pages that are looked at.
//!
//! Where the blocks of a round begin and end cuts its pages into *cells*, all bytes of which have the same users: to note a use is to
//! write a few numbers in a row, and to cut the pages is done once.
//!
//! Invariant: cells are in order, none is empty, and no two overlap.
//! No lock of its own: the heap's.

use super::page::PageId;
use std::ops::Range;

/// Bytes of a page, from and up to where.
pub type Part = (PageId, u64, u64);

/// No call.
const NOBODY: u32 = u32::MAX;

/// The last users: calls, by their number in the round.
#[derive(Debug, Default)]
pub struct Uses {
    cells: Vec<Part>,
    users: Vec<u32>,
}

impl Uses {
    /// Of these parts of pages, each of which is used as a whole; by nobody yet.
    pub fn new(parts: &[Part]) -> Uses {
        let ends = parts
            .iter()
            .flat_map(|&(page, from, to)| [(page, from), (page, to)]);
        let mut cuts: Vec<(PageId, u64)> = ends.collect();
        cuts.sort_unstable();
        cuts.dedup();
        let pairs = cuts.windows(2).filter(|pair| pair[0].0 == pair[1].0);
        let cells: Vec<Part> = pairs.map(|pair| (pair[0].0, pair[0].1, pair[1].1)).collect();
        let users = vec![NOBODY; cells.len()];
        Uses { cells, users }
    }

    /// The cells of which these bytes have some.
    pub fn cells(&self, (page, from, to): Part) -> Range<usize> {
        let first = self
            .cells
            .partition_point(|cell| (cell.0, cell.2) <= (page, from));
        let count = self.cells[first..].partition_point(|cell| (cell.0, cell.1) < (page, to));
        first..first + count
    }

    /// Who used these cells last; one call after the other, but mostly once.
    pub fn users(&self, cells: Range<usize>) -> impl Iterator<Item = usize> + '_ {
        let users = self.users[cells].chunk_by(|one, other| one == other);
        users
            .filter(|same| same[0] != NOBODY)
            .map(|same| same[0] as usize)
    }

    /// They are used anew.
    pub fn set(&mut self, cells: Range<usize>, user: usize) {
        self.users[cells].fill(user as u32);
    }

    /// Those of them that nobody is known to have used later were used.
    pub fn set_before(&mut self, cells: Range<usize>, user: usize) {
        for last in &mut self.users[cells] {
            *last = if *last == NOBODY { user as u32 } else { *last };
        }
    }

    /// Who used which of these bytes last, in order.
    pub fn of(&self, part: Part) -> impl Iterator<Item = (u64, u64, usize)> + '_ {
        let (_, from, to) = part;
        let used = self.cells(part).filter(|&cell| self.users[cell] != NOBODY);
        used.map(move |cell| {
            let (_, start, end) = self.cells[cell];
            (start.max(from), end.min(to), self.users[cell] as usize)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against a user for each byte.
    #[test]
    fn the_last_user_of_each_byte_is_known() {
        const PAGES: u32 = 3;
        const BYTES: u64 = 40;
        let mut random = 1u64;
        let mut below = |most: u64| {
            random = random
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (random >> 33) % most
        };
        let mut seen_none = 0;
        for _ in 0..200 {
            let parts: Vec<Part> = (0..12)
                .map(|_| {
                    let from = below(BYTES);
                    (below(PAGES.into()) as u32, from, from + 1 + below(BYTES - from))
                })
                .collect();
            let mut uses = Uses::new(&parts);
            let mut model = vec![[None; BYTES as usize]; PAGES as usize];
            for step in 0..40 {
                let user = step / 2; // some are the same
                let part = parts[below(parts.len() as u64) as usize];
                let bytes = &mut model[part.0 as usize][part.1 as usize..part.2 as usize];
                let cells = uses.cells(part);
                match below(2) {
                    0 => {
                        uses.set(cells, user);
                        bytes.fill(Some(user));
                    }
                    _ => {
                        uses.set_before(cells, user);
                        bytes.iter_mut().for_each(|byte| *byte = byte.or(Some(user)));
                    }
                }
                let (page, from) = (below(PAGES.into()) as u32, below(BYTES));
                let mut seen = vec![None; BYTES as usize];
                for (start, end, user) in uses.of((page, from, BYTES)) {
                    assert!(from <= start && start < end && end <= BYTES);
                    seen[start as usize..end as usize].fill(Some(user));
                }
                assert_eq!(seen[from as usize..], model[page as usize][from as usize..]);
                seen_none += u32::from(seen.contains(&None));
            }
        }
        assert!(seen_none > 0);
    }
}
