//! Blocks that other processes use.
//!
//! A live block is *offered* under a number, by which another process may ask for it, and is *lent* to each that does.
//! As long as it is lent its pages stay as they are: freed, the block waits in limbo until the last borrower has given
//! it back, so its memory is nobody else's, and its pages are neither moved nor given back. A number ends with the free
//! of its block and never comes again, so that who asks too late is told so.
//!
//! The other side, a pool that *borrows*, has such blocks in its books, too: each in a segment of its own, which holds
//! the pages that the block lies in. What else there is in the segment is free, and nobody can ask for it.
//!
//! No lock of its own: the heap's.

use super::heap::{Block, Heap};
use super::limbo::Limbo;
use super::node::Kind;
use super::order::COMMON;
use super::size::{GRAIN, round_down};
use super::space::Found;
use crate::base::units::PageHandle;

/// Where a lent block lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The pages that it lies in, in order, each with its bytes.
    pub pages: Vec<(PageHandle, u64)>,
    /// Where in the first of them it begins.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u64,
}

/// Other processes' part in a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Loan {
    /// The number under which it is offered; 0: it is not.
    pub(super) number: u64,
    /// Processes that have it.
    pub(super) borrowers: u32,
}

impl Heap {
    /// Offers a block to other processes, under the same number each time.
    pub fn offer(&mut self, block: Block) -> u64 {
        let start = self.block_start(block);
        self.make_special(start);
        let next = self.offers + 1;
        let loan = &mut self.users_of(start).loan;
        if loan.number == 0 {
            loan.number = next;
            self.offers = next;
        }
        self.users_of(start).loan.number
    }

    /// Lends the block at `at` that was offered under a number. None: it has been freed.
    pub fn lend(&mut self, at: u64, number: u64) -> Option<Extent> {
        let loan = &mut self.also_used.get_mut(&at)?.loan;
        if loan.number != number || number == 0 {
            return None;
        }
        loan.borrowers += 1;
        self.lent += 1;
        let block = self.find_block(at).expect("what is in use is live");
        Some(self.extent(at, self.block_bytes(block)))
    }

    fn extent(&self, at: u64, bytes: u64) -> Extent {
        let (mut pages, mut next) = (Vec::new(), at);
        let first = self.pages.mapping(self.space.mapping_at(at)).at;
        while next < at + bytes {
            let mapping = self.space.mapping_at(next);
            let page = self.pages.page_of(mapping);
            pages.push((page.handle, page.bytes));
            next = self.pages.mapping(mapping).at + page.bytes;
        }
        Extent {
            pages,
            offset: at - first,
            bytes,
        }
    }

    /// A borrower of the block that was offered under a number has given it back.
    pub fn end_loan(&mut self, at: u64, number: u64) {
        let live = self.also_used.get_mut(&at).map(|users| &mut users.loan);
        let loan = live.or_else(|| {
            // to the front, because only so much of what is held is looked at
            let index = self.limbo.iter().position(|held| held.at == at)?;
            self.limbo.swap(0, index);
            self.limbo.front_mut().map(|held| &mut held.loan)
        });
        if let Some(loan) = loan.filter(|loan| loan.number == number && loan.borrowers > 0) {
            loan.borrowers -= 1;
            self.lent -= 1;
        }
        self.release_limbo();
    }

    /// Blocks that are lent, each as often as it is.
    pub fn lent(&self) -> u64 {
        self.lent
    }

    /// A segment came that holds a borrowed block, which is live from now on.
    pub fn borrow(&mut self, at: u64, handle: PageHandle, bytes: u64, block: u64, len: u64) {
        self.add_segment(at, handle, bytes);
        let (Found::Start(id) | Found::Inside(id)) = self.space.find(block) else {
            unreachable!("in the segment")
        };
        debug_assert!(self.space.nodes[id].kind == Kind::Free && self.space.nodes[id].owner == COMMON);
        // the lender's small blocks may begin in the middle of a grain
        let start = round_down(block, GRAIN);
        if start != block {
            self.set_back.insert(start);
        }
        let len = (block - start + len).next_multiple_of(GRAIN);
        let id = self.cut_free(id, start, start + len);
        self.space.nodes[id].kind = Kind::Live;
        self.set_used(self.stats.used + len);
        self.directory.begin(start, len, false);
        self.directory.set_special(start);
        self.stats.allocations += 1;
    }

    /// Is this the address of a block that begins in the middle of its node's first grain?
    pub(super) fn is_set_back(&self, at: u64, node: u64) -> bool {
        at == node + GRAIN / 2 && self.set_back.contains(&node)
    }

    /// Checks that what is counted as lent is so.
    pub(super) fn validate_loans(&self) {
        let live = self.also_used.values().map(|users| users.loan);
        let freed = self.limbo.iter().map(|Limbo { loan, .. }| *loan);
        let lent: u64 = live.chain(freed).map(|loan| u64::from(loan.borrowers)).sum();
        assert_eq!(lent, self.lent, "blocks lent");
    }
}
