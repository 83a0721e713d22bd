//! Slabs: runs of equal small blocks (Bonwick, "The slab allocator", 1994). A slab belongs to the stream that
//! it was made for and serves that stream only; which blocks are free is a bitmap beside it.
//!
//! A block freed on another stream is a *stray*: it comes back to its slab once the host has seen that
//! stream's work complete. Until then, and while another stream's recorded use holds a freed block back, it
//! is in limbo: neither live nor free.
//!
//! Invariants: `free` and `limbo` bits are disjoint; a slab with a free block is on its owner's list of its
//! class; each arena keeps at most one wholly free slab a class.
//! No lock of its own: the heap's.

use super::heap::{Block, Heap};
use super::node::{Kind, NIL, Node, NodeId};
use super::order::COMMON;
use super::size::{CLASS_BYTES, CLASSES, WINDOW, class_of, round_up, run_bytes};
use super::space::Found;
use crate::base::error::Error;
use crate::base::units::Addr;
use rustc_hash::FxHashMap;

/// A run of equal blocks.
#[derive(Debug)]
pub struct Slab {
    /// First block's address.
    pub base: u64,
    /// The run.
    pub node: NodeId,
    /// The stream it serves.
    pub owner: u32,
    /// Size class.
    pub class: u8,
    /// Blocks in the run.
    pub blocks: u16,
    /// Free blocks.
    pub free: u16,
    /// Blocks in limbo.
    pub limbo: u16,
    /// Number of its owner's latest free in it, or before it was made.
    pub seq: u64,
    free_bits: [u64; 4],
    limbo_bits: [u64; 4],
    prev: u32,
    next: u32,
}

/// All slabs of a pool.
#[derive(Debug, Default)]
pub struct Slabs {
    all: Vec<Option<Slab>>,
    spare: Vec<u32>,
    owned: FxHashMap<u32, u32>,
    /// Blocks of all slabs: as many strays as there can be.
    blocks: usize,
    strays: Strays,
}

/// A block on its way back to its slab.
#[derive(Clone, Copy, Debug)]
struct Stray {
    seq: u64,
    slab: u32,
    block: u16,
    next: u32,
}

/// The strays of one stream.
#[derive(Clone, Copy, Debug)]
pub struct StrayList {
    first: u32,
    last: u32,
}

impl Default for StrayList {
    fn default() -> StrayList {
        StrayList {
            first: NIL,
            last: NIL,
        }
    }
}

impl StrayList {
    /// Are there none?
    pub fn is_empty(&self) -> bool {
        self.first == NIL
    }
}

/// The strays of all streams. A stray is made by a free, which may not allocate, so there is room for as many
/// as there are blocks.
#[derive(Debug)]
struct Strays {
    all: Vec<Stray>,
    spare: u32,
}

impl Default for Strays {
    fn default() -> Strays {
        Strays {
            all: Vec::new(),
            spare: NIL,
        }
    }
}

impl Strays {
    fn expect(&mut self, blocks: usize) {
        self.all.reserve(blocks.saturating_sub(self.all.len()));
    }

    fn push(&mut self, list: &mut StrayList, stray: Stray) {
        let id = if self.spare == NIL {
            self.all.push(stray);
            self.all.len() as u32 - 1
        } else {
            let id = self.spare;
            self.spare = std::mem::replace(&mut self.all[id as usize], stray).next;
            id
        };
        if list.last == NIL {
            list.first = id;
        } else {
            self.all[list.last as usize].next = id;
        }
        list.last = id;
    }

    /// The oldest stray, if its number is not above `completed`.
    fn pop(&mut self, list: &mut StrayList, completed: u64) -> Option<(u32, u16)> {
        if list.first == NIL || self.all[list.first as usize].seq > completed {
            return None;
        }
        let id = list.first;
        let stray = self.all[id as usize];
        list.first = stray.next;
        if list.first == NIL {
            list.last = NIL;
        }
        self.all[id as usize].next = self.spare;
        self.spare = id;
        Some((stray.slab, stray.block))
    }
}

fn bit(index: u16) -> (usize, u64) {
    ((index / 64) as usize, 1 << (index % 64))
}

impl Slabs {
    /// The slab.
    pub fn get(&self, id: u32) -> &Slab {
        self.all[id as usize].as_ref().expect("a slab")
    }

    fn get_mut(&mut self, id: u32) -> &mut Slab {
        self.all[id as usize].as_mut().expect("a slab")
    }

    /// Slabs that serve a stream.
    pub fn owned(&self, stream: u32) -> u32 {
        self.owned.get(&stream).copied().unwrap_or(0)
    }

    /// All slabs.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Slab)> {
        self.all
            .iter()
            .enumerate()
            .filter_map(|(id, slab)| Some((id as u32, slab.as_ref()?)))
    }

    /// The live block at an address inside a slab's run, or what is wrong with the address.
    #[inline(always)]
    pub fn find(&self, id: u32, at: u64) -> Result<Block, Error> {
        let slab = self.get(id);
        let size = self.block_bytes(id);
        let index = ((at - slab.base) / size) as u16;
        if index >= slab.blocks {
            return Err(Error::DoubleFree(Addr(at))); // the run's unused tail
        }
        let (word, mask) = bit(index);
        if (slab.free_bits[word] | slab.limbo_bits[word]) & mask != 0 {
            return Err(Error::DoubleFree(Addr(at)));
        }
        let block = slab.base + u64::from(index) * size;
        if at != block {
            return Err(Error::InteriorPointer {
                at: Addr(at),
                block: Addr(block),
                bytes: size,
            });
        }
        Ok(Block::Small(id, index))
    }

    /// Bytes of each block.
    pub fn block_bytes(&self, id: u32) -> u64 {
        u64::from(CLASS_BYTES[self.get(id).class as usize])
    }

    /// Address of a block.
    pub fn block_start(&self, id: u32, index: u16) -> u64 {
        self.get(id).base + u64::from(index) * self.block_bytes(id)
    }

    /// Which block starts at an address.
    pub fn index_of(&self, id: u32, at: u64) -> u16 {
        ((at - self.get(id).base) / self.block_bytes(id)) as u16
    }

    /// The block is live after all.
    pub fn clear_limbo(&mut self, id: u32, index: u16) {
        let slab = self.get_mut(id);
        let (word, mask) = bit(index);
        slab.limbo_bits[word] &= !mask;
        slab.limbo -= 1;
    }

    /// A freed block is held back.
    pub fn set_limbo(&mut self, id: u32, index: u16) {
        let slab = self.get_mut(id);
        let (word, mask) = bit(index);
        slab.limbo_bits[word] |= mask;
        slab.limbo += 1;
    }

    /// Is the block live?
    pub fn is_live(&self, id: u32, index: u16) -> bool {
        let (word, mask) = bit(index);
        let slab = self.get(id);
        (slab.free_bits[word] | slab.limbo_bits[word]) & mask == 0
    }

    /// Checks one slab's books; panics if they are wrong.
    pub fn validate(&self, id: u32) {
        let slab = self.get(id);
        let ones = |bits: &[u64; 4]| bits.iter().map(|word| word.count_ones()).sum::<u32>();
        assert_eq!(ones(&slab.free_bits), u32::from(slab.free), "{slab:?}");
        assert_eq!(ones(&slab.limbo_bits), u32::from(slab.limbo), "{slab:?}");
        assert!(
            (0..4).all(|word| slab.free_bits[word] & slab.limbo_bits[word] == 0),
            "{slab:?}"
        );
        assert!(
            slab.base.is_multiple_of(WINDOW) && slab.free + slab.limbo <= slab.blocks,
            "{slab:?}"
        );
    }
}

impl Heap {
    #[inline(never)]
    pub(super) fn alloc_small(&mut self, class: usize, stream: u32) -> Option<u64> {
        let mut id = self.arena(stream).partial[class];
        if id == NIL {
            id = self.make_slab(class, stream)?;
        }
        let bits = &self.slabs.get(id).free_bits;
        let word = bits.iter().position(|&bits| bits != 0);
        let word = word.expect("a partial slab has a free block");
        Some(self.take_block(id, (word as u32 * 64 + bits[word].trailing_zeros()) as u16))
    }

    /// A free block of a slab is live.
    #[inline(always)]
    fn take_block(&mut self, id: u32, index: u16) -> u64 {
        let slab = self.slabs.get_mut(id);
        let (class, (word, mask)) = (slab.class as usize, bit(index));
        debug_assert_ne!(slab.free_bits[word] & mask, 0);
        slab.free_bits[word] &= !mask;
        slab.free -= 1;
        let size = u64::from(CLASS_BYTES[class]);
        let at = slab.base + u64::from(index) * size;
        if slab.free == 0 {
            self.unlist_slab(id);
        }
        self.stats.cached -= size;
        self.set_used(self.stats.used + size);
        self.directory.begin_small(at, class);
        at
    }

    /// Allocates this block of the slab that begins at `base`, or would, if it is free for the stream.
    pub(super) fn alloc_small_at(&mut self, at: u64, base: u64, bytes: u64, stream: u32) -> Option<u64> {
        let class = class_of(bytes, 0)?;
        let id = match self.space.find(base) {
            Found::Start(node) if self.space.nodes[node].kind == Kind::Slab => self.space.nodes[node].slab,
            _ if self.arena(stream).partial[class] != NIL => return None,
            _ => self.make_slab_at(base, class, stream)?,
        };
        let slab = self.slabs.get(id);
        if slab.owner != stream || usize::from(slab.class) != class {
            return None;
        }
        let index = self.slabs.index_of(id, at);
        let (word, mask) = bit(index);
        let free = slab.free_bits[word] & mask != 0;
        free.then(|| self.take_block(id, index))
    }

    /// A block of a slab that begins at `base`, or would, is live: there is such a slab of the stream's, or nothing but free memory.
    pub(super) fn place_small(&mut self, at: u64, base: u64, class: usize, stream: u32) {
        let id = match self.space.find(base) {
            Found::Start(node) if self.space.nodes[node].kind == Kind::Slab => self.space.nodes[node].slab,
            _ => {
                let node = self.claim(base, run_bytes(class));
                let seq = self.arena(stream).seq;
                self.begin_slab(node, class, stream, seq)
            }
        };
        debug_assert_eq!(self.slabs.get(id).class as usize, class);
        self.take_block(id, self.slabs.index_of(id, at));
    }

    fn make_slab(&mut self, class: usize, stream: u32) -> Option<u32> {
        let found = self.fit(run_bytes(class), WINDOW, stream)?;
        self.make_slab_at(round_up(self.space.nodes[found].start, WINDOW), class, stream)
    }

    /// The same at this very place.
    fn make_slab_at(&mut self, base: u64, class: usize, stream: u32) -> Option<u32> {
        let len = run_bytes(class);
        let node = self.cut_at(base, len, stream)?;
        let &Node { owner, seq, .. } = &self.space.nodes[node];
        Some(self.begin_slab(node, class, stream, if owner == COMMON { 0 } else { seq }))
    }

    /// A node on no list is a slab, whose stream's work on it ends with that number.
    fn begin_slab(&mut self, node: NodeId, class: usize, stream: u32, seq: u64) -> u32 {
        let (base, len) = (self.space.nodes[node].start, run_bytes(class));
        let blocks = (len / u64::from(CLASS_BYTES[class])) as u16;
        let mut free_bits = [0; 4];
        for (word, bits) in free_bits.iter_mut().enumerate() {
            let here = (u32::from(blocks)).saturating_sub(word as u32 * 64).min(64);
            *bits = if here == 64 { u64::MAX } else { (1 << here) - 1 };
        }
        let slab = Slab {
            base,
            node,
            owner: stream,
            class: class as u8,
            blocks,
            free: blocks,
            limbo: 0,
            seq,
            free_bits,
            limbo_bits: [0; 4],
            prev: NIL,
            next: NIL,
        };
        let id = match self.slabs.spare.pop() {
            Some(id) => {
                self.slabs.all[id as usize] = Some(slab);
                id
            }
            None => {
                self.slabs.all.push(Some(slab));
                self.slabs.spare.reserve(self.slabs.all.capacity());
                self.slabs.all.len() as u32 - 1
            }
        };
        self.slabs.blocks += usize::from(blocks);
        self.slabs.strays.expect(self.slabs.blocks);
        *self.slabs.owned.entry(stream).or_insert(0) += 1;
        self.space.nodes[node].kind = Kind::Slab;
        self.space.nodes[node].slab = id;
        self.directory.begin_run(base, class, stream);
        self.note_states(base, len);
        self.stats.cached += len;
        self.list_slab(id);
        id
    }

    /// All of a stream's slabs may be in use by its work up to that number.
    /// Whose slab begins at an address, if one does.
    pub(super) fn slab_owner(&self, base: u64) -> Option<u32> {
        let Found::Start(node) = self.space.find(base) else {
            return None;
        };
        let node = &self.space.nodes[node];
        (node.kind == Kind::Slab).then(|| self.slabs.get(node.slab).owner)
    }

    pub(super) fn note_all_small(&mut self, stream: u32, seq: u64) {
        for slab in self.slabs.all.iter_mut().flatten() {
            if slab.owner == stream {
                slab.seq = slab.seq.max(seq);
            }
        }
    }

    pub(super) fn free_small(&mut self, id: u32, index: u16, stream: u32, complete: bool) {
        let size = self.slabs.block_bytes(id);
        let home = self.slabs.get(id).owner == stream;
        if complete || stream == COMMON || home {
            if home && !complete && stream != COMMON {
                let seq = self.arena_mut(stream).tick(size);
                self.note_small(id, seq);
            }
            self.return_block(id, index);
        } else {
            self.slabs.set_limbo(id, index);
            self.stats.pending += size;
            let arena = self.arenas[stream as usize].as_mut().expect("a stream in use");
            let seq = arena.tick(size);
            arena.unrecorded.strays += size;
            self.slabs.strays.push(
                &mut arena.strays,
                Stray {
                    seq,
                    slab: id,
                    block: index,
                    next: NIL,
                },
            );
        }
    }

    /// A block of the slab is, or was, its owner's under this number.
    #[inline(always)]
    pub(super) fn note_small(&mut self, id: u32, seq: u64) {
        let slab = self.slabs.get_mut(id);
        slab.seq = slab.seq.max(seq);
    }

    /// Returns to their slabs the strays of a stream whose work is complete.
    pub(super) fn return_strays(&mut self, stream: u32) -> bool {
        let mut any = false;
        loop {
            let arena = self.arenas[stream as usize].as_mut().expect("a stream in use");
            let Some((id, index)) = self.slabs.strays.pop(&mut arena.strays, arena.completed) else {
                return any;
            };
            self.stats.pending -= self.slabs.block_bytes(id);
            self.return_block(id, index);
            any = true;
        }
    }

    /// A block, live or in limbo, is free in its slab. A slab that is wholly free goes back to the heap if
    /// its owner has another one to serve from.
    pub(super) fn return_block(&mut self, id: u32, index: u16) {
        let slab = self.slabs.get_mut(id);
        let (word, mask) = bit(index);
        if slab.limbo_bits[word] & mask != 0 {
            slab.limbo_bits[word] &= !mask;
            slab.limbo -= 1;
        }
        debug_assert_eq!(slab.free_bits[word] & mask, 0);
        slab.free_bits[word] |= mask;
        slab.free += 1;
        let (owner, class, first, full) = (
            slab.owner,
            slab.class as usize,
            slab.free == 1,
            slab.free == slab.blocks,
        );
        self.stats.cached += u64::from(CLASS_BYTES[class]);
        if first {
            self.list_slab(id);
        }
        if full {
            let head = self.arena(owner).partial[class];
            if head != id || self.slabs.get(id).next != NIL {
                self.drop_slab(id, owner);
            }
        }
    }

    /// Gives wholly free slabs back to the heap. Returns whether there were any.
    pub fn flush_slabs(&mut self) -> bool {
        let streams = std::iter::once(COMMON).chain(self.streams_now());
        self.flush_slabs_of(streams, |_, stream, _| Some(stream))
    }

    /// The same with those whose owners' work on them is complete: they become everybody's, as all that lies beside them may be,
    /// and would not be any more if it were joined with a stream's.
    pub fn share_slabs(&mut self) {
        self.share_slabs_of(std::iter::once(COMMON).chain(self.streams_now()));
    }

    /// The same of these.
    pub(super) fn share_slabs_of(&mut self, streams: impl Iterator<Item = u32>) {
        let complete = |heap: &Heap, stream, seq| heap.is_complete(stream, seq).then_some(COMMON);
        self.flush_slabs_of(streams, complete);
    }

    fn flush_slabs_of(
        &mut self,
        streams: impl Iterator<Item = u32>,
        to: impl Fn(&Heap, u32, u64) -> Option<u32>,
    ) -> bool {
        let mut any = false;
        for stream in streams {
            for class in 0..CLASSES {
                let mut id = self.arena(stream).partial[class];
                while id != NIL {
                    let slab = self.slabs.get(id);
                    let next = slab.next;
                    if slab.free == slab.blocks
                        && let Some(to) = to(self, stream, slab.seq)
                    {
                        self.drop_slab(id, to);
                        any = true;
                    }
                    id = next;
                }
            }
        }
        any
    }

    /// The slabs of an arena, whose work is complete, are everybody's from now on.
    pub(super) fn share_all_slabs(&mut self, from: u32) {
        for id in 0..self.slabs.all.len() as u32 {
            let Some(slab) = self.slabs.all[id as usize].as_ref() else {
                continue;
            };
            let (free, blocks) = (slab.free, slab.blocks);
            if slab.owner != from {
                continue;
            }
            if free > 0 {
                self.unlist_slab(id);
            }
            let slab = self.slabs.get_mut(id);
            slab.owner = COMMON;
            self.directory.begin_run(slab.base, slab.class.into(), COMMON);
            *self.slabs.owned.entry(COMMON).or_insert(0) += 1;
            if free > 0 {
                self.list_slab(id);
            }
            if free == blocks {
                self.drop_slab(id, COMMON);
            }
        }
        self.slabs.owned.remove(&from);
    }

    /// A wholly free slab is an extent of that arena.
    fn drop_slab(&mut self, id: u32, to: u32) {
        self.unlist_slab(id);
        self.see_run_end(self.slabs.get(id).owner);
        let slab = self.slabs.all[id as usize].take().expect("a slab");
        self.slabs.spare.push(id);
        self.slabs.blocks -= usize::from(slab.blocks);
        self.directory.end_run(slab.base, slab.class.into());
        if let Some(owned) = self.slabs.owned.get_mut(&slab.owner) {
            *owned -= 1;
            if *owned == 0 {
                self.slabs.owned.remove(&slab.owner);
            }
        }
        self.stats.cached -= self.space.nodes[slab.node].len;
        self.space.nodes[slab.node].slab = NIL;
        match to {
            COMMON => self.put_free(slab.node, COMMON),
            to => self.put_free_since(slab.node, to, slab.seq),
        }
    }

    /// Is the slab on its owner's list?
    pub(super) fn slab_is_listed(&self, id: u32) -> bool {
        let slab = self.slabs.get(id);
        let mut other = self.arena(slab.owner).partial[slab.class as usize];
        while other != NIL && other != id {
            other = self.slabs.get(other).next;
        }
        other == id
    }

    fn list_slab(&mut self, id: u32) {
        let (owner, class) = (self.slabs.get(id).owner, self.slabs.get(id).class as usize);
        let head = std::mem::replace(&mut self.arena_mut(owner).partial[class], id);
        if head != NIL {
            self.slabs.get_mut(head).prev = id;
        }
        let slab = self.slabs.get_mut(id);
        (slab.prev, slab.next) = (NIL, head);
    }

    fn unlist_slab(&mut self, id: u32) {
        let slab = self.slabs.get(id);
        let (owner, class, prev, next) = (slab.owner, slab.class as usize, slab.prev, slab.next);
        if prev == NIL {
            self.arena_mut(owner).partial[class] = next;
        } else {
            self.slabs.get_mut(prev).next = next;
        }
        if next != NIL {
            self.slabs.get_mut(next).prev = prev;
        }
    }
}
