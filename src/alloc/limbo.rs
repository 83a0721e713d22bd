//! Blocks that more streams use than the one that frees them, or other processes. Once freed they are in *limbo*,
//! neither live nor free, until all that work is complete and the last borrower has given them back.
//!
//! No lock of its own: the heap's.

use super::heap::{Block, Heap};
use super::lend::Loan;
use super::node::Kind;
use super::order::{COMMON, Clock};
use super::space::Found;
use crate::base::units::{StreamHandle, Timeline};
use rustc_hash::FxHashSet;

/// So many held-back blocks are looked at in vain.
const LOOKS: usize = 256;

/// Who uses a block beside the stream that will free it.
#[derive(Debug, Default)]
pub struct Users {
    /// The part of a capture that it was handed out on.
    pub(super) born: Option<Timeline>,
    pub(super) streams: Vec<User>,
    pub(super) loan: Loan,
    /// Copies of weir's own from or to the block, and what streams did with it that have ended: the streams, and the numbers
    /// behind which an event covers that.
    copies: Clock,
    /// Empty, with room for what its free will need.
    needs: Clock,
}

/// A stream that uses a block.
#[derive(Clone, Copy, Debug)]
pub struct User {
    /// Which.
    pub line: Timeline,
    /// By which name the pool may record an event on it at any time.
    pub reach: Option<StreamHandle>,
}

/// A freed block and the work that must be complete before anybody may have it.
#[derive(Debug)]
pub struct Limbo {
    /// The block.
    pub at: u64,
    /// Streams and numbers.
    pub needs: Clock,
    pub(super) loan: Loan,
}

impl Users {
    /// Does a graph, a stream or a copy?
    pub(super) fn use_it(&self) -> bool {
        self.born.is_some() || !self.streams.is_empty() || !self.copies.is_empty()
    }

    /// An event covers a use by this stream up to this number.
    fn wait_for(&mut self, (index, number): (u32, u64)) {
        match self.copies.iter_mut().find(|copy| copy.0 == index) {
            Some(copy) => copy.1 = number,
            None => self.copies.push((index, number)),
        }
        self.make_room();
    }

    /// A free allocates nothing.
    fn make_room(&mut self) {
        let most = self.streams.len() + self.copies.len() + 2;
        self.needs.reserve(most);
    }
}

impl Heap {
    /// The block is used on a stream, too.
    pub fn record_use(&mut self, block: Block, by: User) {
        let start = self.block_start(block);
        self.make_special(start);
        let users = self.users_of(start);
        match users.streams.iter_mut().find(|user| user.line == by.line) {
            Some(user) => user.reach = by.reach,
            None => {
                users.streams.push(by);
                users.make_room();
            }
        }
    }

    /// A stream of that name is about to end. Who frees a block that it uses waits for the event that is to be recorded on it now: there
    /// will be no other one.
    pub fn end_uses(&mut self, name: StreamHandle) {
        let users = self.also_used.values().flat_map(|users| &users.streams);
        let lines: FxHashSet<Timeline> = users
            .filter(|user| user.reach == Some(name))
            .map(|user| user.line)
            .collect();
        for line in lines {
            let index = self.stream(line);
            self.set_reach(index, Some(name));
            let number = self.arena_mut(index).tick(0);
            for users in self.also_used.values_mut() {
                let before = users.streams.len();
                users.streams.retain(|user| user.line != line);
                if users.streams.len() < before {
                    users.wait_for((index, number));
                }
            }
        }
    }

    /// A copy from or to the block has been queued, on a stream that is not captured. Gives the stream and the number that
    /// is now to be covered by an event.
    pub fn note_copy(&mut self, block: Block, by: Timeline) -> (u32, u64) {
        let index = self.stream(by);
        self.host_has_used(index);
        let number = self.arena_mut(index).tick(0);
        let start = self.block_start(block);
        self.make_special(start);
        self.users_of(start).wait_for((index, number));
        (index, number)
    }

    /// The entry of a block's users, with room for all that its free will need.
    pub(super) fn users_of(&mut self, at: u64) -> &mut Users {
        self.limbo.reserve(self.also_used.len() + 1);
        let users = self.also_used.entry(at).or_default();
        users.make_room();
        users
    }

    /// Who still uses a block that is freed on `stream`, beside that stream; none if nobody does.
    #[inline(always)]
    pub(super) fn users_at_free(&mut self, block: Block, stream: u32, complete: bool) -> Option<Users> {
        if self.also_used.is_empty() && self.capture_of(stream).is_none() {
            return None;
        }
        self.find_users(block, stream, complete)
    }

    fn find_users(&mut self, block: Block, stream: u32, complete: bool) -> Option<Users> {
        let here = self.arena(stream).id;
        let mut users = self
            .also_used
            .remove(&self.block_start(block))
            .unwrap_or_default();
        let mut copies = std::mem::take(&mut users.copies);
        copies.retain(|&(stream, number)| !self.is_complete(stream, number));
        users.copies = copies;
        if complete {
            // only its owner knows when a graph is done
            users.streams.retain(|user| user.line.capture.is_some());
        }
        users.streams.retain(|user| user.line != here);
        if here.capture.is_some() && !complete {
            match users.born {
                Some(born) if born.capture == here.capture => users.born = None,
                // the graph uses it on each launch, and the stream's own work may still do so
                _ => users.streams.push(User {
                    line: Timeline::of(here.stream),
                    reach: None,
                }),
            }
        }
        (users.use_it() || users.loan.borrowers > 0).then_some(users)
    }

    /// A block freed while others use it waits for all of them. Events of streams can be recorded only in calls
    /// that name them, so they are asked for.
    pub(super) fn hold_back(&mut self, block: Block, bytes: u64, stream: Option<u32>, users: Users) {
        let Users {
            born,
            streams,
            loan,
            copies,
            mut needs,
        } = users;
        needs.extend(copies);
        let mut need = |heap: &mut Heap, user: u32| {
            heap.host_has_used(user);
            let number = heap.arena_mut(user).tick(bytes);
            match needs.iter_mut().find(|need| need.0 == user) {
                Some(need) => need.1 = number,
                None => needs.push((user, number)),
            }
            heap.want_event(user);
        };
        let born = born.map(|line| User { line, reach: None });
        for User { line, reach } in streams.into_iter().chain(born) {
            let user = self.stream(line);
            // it may have done nothing but to use blocks
            if reach.is_some() && self.arena(user).reach.is_none() {
                self.set_reach(user, reach);
            }
            need(self, user);
        }
        if let Some(stream) = stream {
            need(self, stream);
        }
        self.stats.pending += bytes;
        self.held += bytes;
        match block {
            Block::Large(id) => self.space.nodes[id].kind = Kind::Limbo,
            Block::Small(slab, index) => self.slabs.set_limbo(slab, index),
        }
        self.limbo.push_back(Limbo {
            at: self.block_start(block),
            needs,
            loan,
        });
    }

    /// Was so much held back that it should have events? An event that is recorded once somebody needs the memory comes after all that the
    /// streams were asked for meanwhile.
    #[inline(always)]
    pub fn is_held_uncovered(&mut self) -> bool {
        let due = self.held > 0 && self.held >= self.most_uncovered();
        if due {
            self.held = 0;
        }
        due
    }

    /// One after the other the streams that the block waits for which was held back last.
    pub fn held_for(&self, number: usize) -> Option<u32> {
        let last = self.limbo.back()?;
        last.needs.get(number).map(|need| need.0)
    }

    /// Frees, for everybody, the held-back blocks whose streams are done; those of guests of a replay for these. Looks at a bounded number
    /// of those that are not: where more were held back than that between two looks, what is done would become ever more, and memory
    /// with it.
    pub fn release_limbo(&mut self) -> bool {
        let (mut any, mut in_vain) = (false, 0);
        for _ in 0..self.limbo.len() {
            if in_vain == LOOKS {
                break;
            }
            let held = self.limbo.pop_front().expect("an entry");
            let complete = |&(stream, seq): &(u32, u64)| self.is_complete(stream, seq);
            let is_done = held.loan.borrowers == 0 && held.needs.iter().all(complete);
            let to = match self.replay.is_on() {
                _ if !is_done => None,
                true => self.guest_of_held(&held),
                false => Some(COMMON),
            };
            let Some(to) = to else {
                self.limbo.push_back(held);
                in_vain += 1;
                continue;
            };
            any = true;
            match self.space.find(held.at) {
                Found::Start(id) if self.space.nodes[id].kind == Kind::Limbo => {
                    self.stats.pending -= self.space.nodes[id].len;
                    self.put_free(id, to);
                }
                Found::Start(id) | Found::Inside(id) => {
                    let slab = self.space.nodes[id].slab;
                    self.stats.pending -= self.slabs.block_bytes(slab);
                    self.return_block(slab, self.slabs.index_of(slab, held.at));
                }
                Found::Outside => unreachable!("a held-back block is the pool's"),
            }
        }
        any
    }
}
