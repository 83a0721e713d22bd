//! Where the pages of a request may come from: how many may be created, how large they are, and in which order the pool
//! creates and moves them.

use super::miss::Request;
use super::{Pool, index_for_alloc};
use crate::alloc::heap::Heap;
use crate::alloc::plan::Sources;
use crate::alloc::sharing::May;
use crate::alloc::size::round_up;
use crate::backend::Backend;
use crate::base::error::Error;
use crate::config::{MemoryKind, SLACK};
use std::sync::atomic::Ordering;

/// Pages are created no smaller than this where they may be, since a mapping costs the same whatever its size...
pub(super) const PAGE_MIN: u64 = 8 << 20;
/// ...and no larger than this, or this share of what the pool needs: what is lost at the ends of blocks grows
/// with the page.
pub(super) const PAGE_MAX: u64 = 64 << 20;
const PAGE_SHARE: u64 = 576;
/// Where pages hardly ever move, fewer than one for so many that were created, what is lost with larger ones is
/// little: then they are created in this share of what the pool needs, up to so many bytes at least.
const QUIET: u64 = 10;
const PAGE_SHARE_QUIET: u64 = 144;
const PAGE_MIN_QUIET: u64 = 32 << 20;
/// Where they do move they are as long while this part of the slack, and no more, is held beyond what the pool needs.
const PART_LOST: f64 = 0.4;
/// Where hardly any moves a page is as long as what it is made for, if one stream alone is at work and nothing is short: up to this share of what the pool
/// needs as long as fewer than one of so many blocks was freed, since most stay then, as a model's weights do...
const WHOLE_STAYING: [(u64, u64); 2] = [(16, 48), (4, 120)];
/// ...and up to this from then on.
const WHOLE: u64 = 256;
/// The longer pages are the more is lost at the ends of blocks, and slack is what may be: with more of it than usual they are longer, by so
/// many times the usual length for each usual slack more, up to this share of what the pool needs.
const LONGER: f64 = 2.0;
const PAGE_SHARE_LEAST: u64 = 4;
/// The share for rounds that held too much, and have shed it twice: smaller pages lose less, but each layout takes as many more calls.
const PAGE_SHARE_SHED: u64 = 2 * PAGE_SHARE;
/// A page is no larger part of a limit, if the pool has the choice: what is free in the midst of it would be of use for smaller blocks alone.
const PARTS: u64 = 64;
/// The share for a pool that may come near its limit, where memory matters more than time, the slack there before pages are joined...
const PAGE_SHARE_NEAR: u64 = 2048;
/// (The further it is from its limit the larger they may be for all that: up to this share of what it needs, and this share of
/// what is left of the limit, times the part of the limit that this is.)
const PAGE_SHARE_FAR: u64 = 288;
const PAGE_SHARE_LEFT: u64 = 432;
const SLACK_NEAR: f64 = 0.02;
/// ...and the last part of the limit, which is for requests that no ends of pages can be joined for.
const LAST: u64 = 128;
/// Rounds may hold this share of what they need beyond the slack, so that one page more is no reason to change anything. Where
/// there is less slack than usual it may be beyond the usual one: with none they would shed for ever what they cannot do without.
const BEYOND_SLACK: f64 = 1.0 / 256.0;
const LEEWAY_PINNED: f64 = 0.03;
/// Streams that do not look at each other may have this part of what they need more, rather than wait or look.
const MORE: u64 = 4;

/// Bytes that may be created, and in what pages.
pub(super) struct Room {
    /// Before any page is moved: a quarter of the slack.
    early: u64,
    /// Before pages are joined: the slack, but for the last of a limit.
    slack: u64,
    /// At all.
    limit: u64,
    page_min: u64,
    page_max: u64,
    /// A page is as long as what it is made for, up to so many bytes.
    page_whole: u64,
    /// Windows that leave next to nothing over come first.
    exact: bool,
}

/// The most that is held by streams that do not look at each other and need so much.
fn most(need: u64) -> u64 {
    need.saturating_add(need / MORE)
}

impl Pool {
    /// The ways to back a window, each with more than the one before.
    pub(super) fn steps(&self, room: Room) -> Vec<Sources> {
        let wake = Sources {
            page_min: room.page_min,
            page_max: room.page_max,
            page_whole: room.page_whole,
            exact: room.exact,
            ..Sources::WAKE
        };
        let steps = [
            wake,
            Sources {
                wake: false,
                create: room.early,
                ..wake
            },
            Sources { alias: true, ..wake },
            Sources {
                alias: true,
                create: room.slack,
                ..wake
            },
            Sources {
                join: true,
                create: room.limit,
                ..wake
            },
            Sources {
                alias: true,
                create: room.limit,
                ..wake
            },
        ];
        // without bytes for them, the second, fourth and sixth step are the third, and the first is part of it
        let slot = self.backend.granularity();
        let skip = [
            room.early < slot,
            room.early < slot,
            false,
            room.slack < slot,
            false,
            room.limit < slot,
        ];
        let each = steps.into_iter().zip(skip);
        each.filter(|step| !step.1).map(|step| step.0).collect()
    }

    /// Bytes that may be created now.
    pub(super) fn below_limit(&self) -> Result<u64, Error> {
        Ok(self.left(self.books()?.stats.reserved))
    }

    pub(super) fn left(&self, reserved: u64) -> u64 {
        let below_own = match self.config.max_bytes {
            0 => u64::MAX,
            most => most.saturating_sub(reserved),
        };
        below_own.min(self.pressure.left(reserved))
    }

    /// May it come near its limit? Its pages are small long before, because blocks that stay keep the pages in which they
    /// lie, and what large ones lose at the ends of blocks is missing in the end.
    fn may_come_near(&self, peak: u64) -> bool {
        let most = self.config.max_bytes;
        most != 0 && peak > most / 8
    }

    /// Has it to mind memory rather than time when it makes pages? A device that is short of mappings, too, is no place for
    /// small ones.
    pub(super) fn is_tight(&self, peak: u64) -> bool {
        let pages = peak / self.backend.granularity();
        self.may_come_near(peak) || self.pressure.is_short() && pages <= self.backend.mapping_limit() / 4
    }

    /// Is it so near that no layout is kept for what comes again?
    pub(super) fn is_near(&self, heap: &Heap) -> bool {
        heap.is_crowded() || self.pressure.is_short() && self.is_tight(heap.needed)
    }

    /// Do pages hardly ever move?
    fn is_quiet(&self, heap: &Heap) -> bool {
        heap.stats.pages_moved * QUIET <= self.backend.creates.load(Ordering::Relaxed)
    }

    /// Is little lost at the ends of blocks until now? It may be more, then.
    fn loses_little(&self, heap: &Heap) -> bool {
        let slack = self.config.slack.min(SLACK);
        heap.stats.reserved as f64 <= heap.needed as f64 * (1.0 + PART_LOST * slack)
    }

    /// How long pages are that usually are so long, in a pool that needs so much.
    fn longer(&self, usual: u64, peak: u64) -> u64 {
        let times = 1.0 + LONGER * (self.config.slack / SLACK - 1.0).max(0.0);
        let most = (peak / PAGE_SHARE_LEAST).max(usual);
        ((usual as f64 * times) as u64).min(most)
    }

    /// The smallest and the largest page that a pool creates that needs so much, if it has the choice.
    pub(super) fn page_sizes(&self, peak: u64, heap: &Heap) -> (u64, u64) {
        let slot = self.backend.granularity();
        // requests without order would pay for small pages at every move
        let sheds = if heap.leeway.is_any() {
            0
        } else {
            heap.rest.has_shed(peak)
        };
        let least = match self.config.max_bytes {
            0 => PAGE_MIN,
            most => PAGE_MIN.min(most / PARTS),
        };
        let least = 1 << least.max(slot).ilog2();
        let tight = self.is_tight(peak);
        let (largest, least, most) = match (tight, sheds) {
            (true, _) => (self.page_near_limit(peak), slot, slot),
            (_, 0) if self.is_quiet(heap) => (peak / PAGE_SHARE_QUIET, least, PAGE_MIN_QUIET.max(slot)),
            (_, 0) if self.loses_little(heap) => (peak / PAGE_SHARE_QUIET, least, least),
            (_, 0) => (peak / PAGE_SHARE, least, least),
            (_, 1) if peak >= PAGE_MIN * PAGE_SHARE_QUIET => (peak / PAGE_SHARE, least, least),
            _ => (peak / PAGE_SHARE_SHED, slot, slot),
        };
        let largest = match largest.min(PAGE_MAX) {
            usual if tight || sheds > 0 => usual,
            usual => self.longer(usual, peak),
        };
        let largest = largest.max(least);
        let largest = 1 << largest.ilog2();
        (largest.min(most), largest)
    }

    /// The largest page where memory matters more than time.
    fn page_near_limit(&self, peak: u64) -> u64 {
        let far = match self.config.max_bytes {
            0 => 0,
            _ if self.pressure.is_short() => 0,
            limit => {
                let left = limit.saturating_sub(peak);
                let part = left as f64 / limit as f64;
                (peak / PAGE_SHARE_FAR).min((left as f64 * part) as u64 / PAGE_SHARE_LEFT)
            }
        };
        far.max(peak / PAGE_SHARE_NEAR)
    }

    /// The longest page that it makes as long as what it is for; 0: none. There is none where pages move, nor below a limit, where what the
    /// ends of such pages take would be missing in the end, nor where there is less slack than usual, of which they take more. Nor of several
    /// streams, which pass on to each other the pages that are wholly free.
    fn longest_whole(&self, peak: u64, heap: &Heap) -> u64 {
        if !self.is_quiet(heap)
            || heap.had_several_streams()
            || self.config.max_bytes != 0
            || self.pressure.is_short()
            || self.config.slack < SLACK
            || heap.rest.has_shed(peak) > 0
        {
            return 0;
        }
        let stays = |&&(part, _): &&(u64, u64)| heap.stats.frees * part < heap.stats.allocations;
        let staying = WHOLE_STAYING.iter().find(stays).map(|&(_, share)| share);
        let longest = self.longer(peak / staying.unwrap_or(WHOLE), peak);
        round_up(longest, self.backend.granularity())
    }

    /// What rounds that need so much may hold without a doubt that they could do with less. To page-lock memory anew costs too
    /// much to find out.
    pub(super) fn ample(&self, needed: u64) -> u64 {
        let held = (needed as f64 * (1.0 + self.config.slack.max(SLACK) + BEYOND_SLACK)) as u64;
        match self.config.memory {
            MemoryKind::Pinned => u64::MAX,
            MemoryKind::Device | MemoryKind::Host => {
                let asked = self
                    .config
                    .initial_bytes
                    .saturating_add(self.backend.granularity());
                held.max(asked).saturating_add(self.config.growth_ahead)
            }
        }
    }

    /// The same for what a pool needs now, where what streams may have more that do not look at each other is no doubt.
    pub(super) fn ample_for(&self, heap: &Heap) -> u64 {
        match heap.sharing.is_by_looks() {
            true => self.ample(heap.needed),
            false => self.ample(most(heap.base())),
        }
    }

    /// The most that requests without order may have beyond the slack, as a share. To page-lock memory takes six times as
    /// long as to map what there is (0.25 and 0.04 ms a MiB on an H100's host), and the host needs its memory.
    fn most_leeway(&self) -> f64 {
        match self.config.memory {
            MemoryKind::Pinned => LEEWAY_PINNED,
            MemoryKind::Device | MemoryKind::Host => f64::INFINITY,
        }
    }

    /// What streams may do rather than look at each other. Nothing that comes near a limit, nor where memory is dear.
    pub(super) fn may(&self, heap: &Heap) -> May {
        May {
            wait: heap.reuse.internal_dependencies && self.may_hold(heap, heap.needed),
            part: self.may_hold(heap, heap.need_apart()),
        }
    }

    /// May it hold what streams need that do not look at each other, and more?
    fn may_hold(&self, heap: &Heap, need: u64) -> bool {
        let limit = match self.config.max_bytes {
            0 => u64::MAX,
            limit => limit,
        };
        let dear = self.apart || self.config.memory == MemoryKind::Pinned || self.pressure.is_short();
        !dear && most(need) <= limit.min(heap.release_threshold)
    }

    /// A request was served: is memory to be partitioned?
    #[inline(always)]
    pub(super) fn note_request(&self, heap: &mut Heap, stream: u32, at: u64, bytes: u64) {
        if heap.note_request(stream, bytes, at) {
            let may = self.may_hold(heap, heap.need_by_threads());
            heap.look_at_partition(may);
        }
    }

    /// What may be created before a request that finds nothing of its own stream's turns to others.
    pub(super) fn room_of_streams(&self, request: Request) -> Result<Room, Error> {
        let (len, _) = Heap::need(request.bytes, request.align);
        let room = self.room(len)?;
        let mut heap = self.books()?;
        let stream = index_for_alloc(&mut heap, request.stream);
        let need = match heap.sharing.is_by_looks() && heap.is_nothing_passed() {
            // so far nobody knows whether they would rather wait, and have less, or have what they need apart
            true => heap.need_apart().max(heap.apart_with(stream, len)),
            false => heap.base().max(heap.used_now() + len),
        };
        let most = match heap.sharing.is_by_threads() {
            true => heap.most_by_threads(need),
            false => most(need),
        };
        let left = most.saturating_sub(heap.stats.reserved);
        Ok(Room {
            slack: room.slack.min(left),
            limit: room.limit.min(left),
            ..room
        })
    }

    pub(super) fn room(&self, len: u64) -> Result<Room, Error> {
        let heap = self.books()?;
        let stats = &heap.stats;
        let limit = self.left(stats.reserved);
        let peak = heap.base().max(heap.used_now() + len);
        let (least, largest) = self.page_sizes(peak, &heap);
        let tight = self.is_tight(peak);
        let slack = self.config.slack;
        let before_joins = if tight { slack.min(SLACK_NEAR) } else { slack };
        // what a threshold would have it give back at the next free is not worth creating
        let leeway = match stats.reserved < heap.release_threshold {
            true => heap.leeway.to_create().min(self.most_leeway()),
            false => 0.0,
        };
        let within = |slack: f64| {
            ((peak as f64 * (1.0 + slack)) as u64)
                .saturating_sub(stats.reserved)
                .min(limit)
        };
        // joined ends are two blocks' pages that are seldom free together, but near the end they are all there is
        let last = match tight {
            true => limit.min(stats.reserved.saturating_add(limit) / LAST),
            false => 0,
        };
        let small = peak < 32 * least && stats.reserved < most(peak);
        Ok(Room {
            // a small pool takes whole pages from the start
            early: within(slack / 4.0 + leeway).max(if small { least.min(limit) } else { 0 }),
            slack: within(before_joins + leeway).min(limit - last),
            limit,
            page_min: least,
            page_max: largest,
            page_whole: self.longest_whole(peak, &heap),
            exact: tight,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::counting::Counting;
    use crate::base::units::StreamHandle;
    use crate::config::Config;

    const M: u64 = 1 << 20;

    /// The first time as small as where they move, and small only when that was not enough, or where little is needed.
    #[test]
    fn pages_are_smaller_each_time_that_rounds_have_shed() {
        let config = Config {
            memory: MemoryKind::Host,
            ..Config::default()
        };
        for (need, sizes) in [(4096 * M, [16, 8, 2]), (600 * M, [8, 2, 2])] {
            let pool = Pool::new(config.clone(), Counting::new(true)).expect("a pool");
            pool.alloc(M, 0, StreamHandle(0)).expect("memory, which stays");
            let mut heap = pool.books().expect("its books");
            for (times, size) in sizes.into_iter().enumerate() {
                let is = pool.page_sizes(need, &heap);
                assert_eq!(is, (size * M, size * M), "{need} B, shed {times} times");
                assert_eq!(pool.longest_whole(need, &heap) > 0, times == 0);
                if times < 2 {
                    heap.rest.shed(need);
                }
            }
            assert_eq!(heap.rest.has_shed(2 * need), 0, "it has grown");
        }
    }

    /// The more of the blocks came back the shorter, and none where pages move.
    #[test]
    fn pages_for_blocks_are_shorter_where_more_comes_back() {
        let pool = Pool::new(Config::default(), Counting::new(true)).expect("a pool");
        pool.alloc(M, 0, StreamHandle(0)).expect("memory, which stays");
        let mut heap = pool.books().expect("its books");
        heap.stats.allocations = 1000;
        for (frees, longest) in [(0, 240), (62, 240), (63, 96), (249, 96), (250, 46), (1000, 46)] {
            heap.stats.frees = frees;
            assert_eq!(
                pool.longest_whole(11_520 * M, &heap),
                longest * M,
                "{frees} freed"
            );
        }
        heap.stats.pages_moved = 1; // of one page
        assert_eq!(pool.longest_whole(11_520 * M, &heap), 0);
    }

    /// Where pages move they are long until something is lost, more of it where there is more slack, but for more than usual.
    #[test]
    fn pages_that_move_are_shorter_once_two_fifths_of_the_slack_are_lost() {
        let needed = 11_520 * M;
        for (slack, lost, largest) in [
            (0.0, 0, 64),
            (0.0, 1, 16),
            (SLACK, 115, 64),
            (SLACK, 116, 16),
            (0.1, 115, 256),
            (0.1, 116, 128),
        ] {
            let config = Config {
                slack,
                ..Config::default()
            };
            let pool = Pool::new(config, Counting::new(true)).expect("a pool");
            pool.alloc(M, 0, StreamHandle(0)).expect("memory, which stays");
            let mut heap = pool.books().expect("its books");
            let reserved = heap.stats.reserved;
            (heap.needed, heap.stats.reserved, heap.stats.pages_moved) = (needed, needed + lost * M, 1);
            let is = pool.page_sizes(needed, &heap).1;
            heap.stats.reserved = reserved;
            assert_eq!(is, largest * M, "slack {slack}, {lost} MiB lost");
        }
    }

    /// With less slack than usual none is made as long as its block.
    #[test]
    fn pages_are_longer_where_there_is_more_slack() {
        for (slack, largest, longest) in [
            (0.0, 64, 0),
            (SLACK, 64, 240),
            (0.05, 128, 720),
            (0.1, 256, 1680),
            (16.0, 2048, 2880),
        ] {
            let config = Config {
                slack,
                ..Config::default()
            };
            let pool = Pool::new(config, Counting::new(true)).expect("a pool");
            let need = 11_520 * M;
            pool.alloc(M, 0, StreamHandle(0)).expect("memory, which stays");
            let mut heap = pool.books().expect("its books");
            assert_eq!(
                pool.page_sizes(need, &heap),
                (32 * M, largest * M),
                "slack {slack}"
            );
            assert_eq!(pool.longest_whole(need, &heap), longest * M, "slack {slack}");
            // what was held too long already is made smaller
            heap.rest.shed(need);
            assert_eq!(pool.page_sizes(need, &heap).1, 16 * M, "slack {slack}");
        }
    }

    /// Where an eighth of a limit is needed, or more: the less of it is left the smaller.
    #[test]
    fn pages_are_smaller_the_nearer_the_limit_is() {
        const G: u64 = 1024;
        for (limit, sizes) in [
            (64 * G, [(12 * G, 32), (32 * G, 32), (48 * G, 16), (63 * G, 16)]),
            (8 * G, [(2 * G, 4), (4 * G, 4), (6 * G, 2), (8 * G, 4)]),
        ] {
            let config = Config {
                max_bytes: limit * M,
                ..Config::default()
            };
            let pool = Pool::new(config, Counting::new(true)).expect("a pool");
            let heap = pool.books().expect("its books");
            for (need, size) in sizes {
                let is = pool.page_sizes(need * M, &heap);
                assert_eq!(is, (2 * M, size * M), "limit {limit} MiB, {need} MiB needed");
            }
        }
    }

    /// Whatever the limit is: a page of another length could not be made.
    #[test]
    fn pages_are_as_many_slots_as_a_power_of_two() {
        for slack in [SLACK, 0.5, 4.0] {
            for limit in [436_475_904, 400 * M + 1, 24 * M + 4096, 0] {
                let config = Config {
                    max_bytes: limit,
                    slack,
                    ..Config::default()
                };
                let pool = Pool::new(config, Counting::new(true)).expect("a pool");
                pool.alloc(M, 0, StreamHandle(0)).expect("memory, which stays");
                let mut heap = pool.books().expect("its books");
                heap.stats.pages_moved = 1; // of one page
                for need in [M, 49 * M, 3000 * M] {
                    heap.needed = need;
                    let (least, largest) = pool.page_sizes(need, &heap);
                    let fits = |page: u64| page >= 2 * M && page.is_power_of_two();
                    assert!(
                        fits(least) && fits(largest),
                        "{limit}, {need}: {least} to {largest}"
                    );
                }
            }
        }
    }

    /// A page is no large part of a limit, however little is needed yet.
    #[test]
    fn pages_are_short_where_the_limit_is() {
        for (limit, least) in [(0, 8), (1024 * M, 8), (320 * M, 4), (24 * M, 2)] {
            let config = Config {
                max_bytes: limit,
                ..Config::default()
            };
            let pool = Pool::new(config, Counting::new(true)).expect("a pool");
            let heap = pool.books().expect("its books");
            assert_eq!(pool.page_sizes(M, &heap).0, least * M, "limit {limit}");
        }
    }
}
