//! What a program of [`super::program`] is made of: operations, how its pool is set up, and both at random.

use super::random::Random;
use super::{K, M, Pages};

/// Streams of the device that a program uses.
pub const STREAMS: usize = 4;
/// And two more that never have work in flight.
pub const PLACES: u8 = STREAMS as u8 + 2;
/// The user's events.
pub const EVENTS: u8 = 4;

/// One step. Streams are places: below `STREAMS` a stream of the device, above one without work. Blocks are
/// picked among those that live, whatever the number.
#[derive(Clone, Debug)]
pub enum Op {
    Alloc {
        bytes: u64,
        align: u64,
        stream: u8,
        touch: bool,
    },
    Free {
        pick: u16,
    },
    /// The program orders the stream behind the block's work, through the pool's hooks or behind its back.
    FreeOn {
        pick: u16,
        stream: u8,
        hooks: bool,
    },
    FreeSynced {
        pick: u16,
    },
    Touch {
        pick: u16,
    },
    /// `record_stream`, and work on that stream.
    Share {
        pick: u16,
        stream: u8,
    },
    /// One of weir's copies that uses the block, and its free: at once and without waiting for the copy, on the copy's stream,
    /// the block's, or as one whose other use is over; or by whatever comes later.
    Copy {
        pick: u16,
        stream: u8,
        free: u8,
    },
    Batch {
        sizes: Vec<u64>,
        stream: u8,
    },
    FreeBatch {
        pick: u16,
        count: u8,
        stream: u8,
    },
    Warmup {
        bytes: u64,
        count: u8,
        stream: u8,
    },
    Trim {
        keep: u64,
    },
    Squeeze,
    Record {
        event: u8,
        stream: u8,
    },
    Wait {
        event: u8,
        stream: u8,
    },
    SyncEvent {
        event: u8,
    },
    SyncStream {
        stream: u8,
    },
    SyncAll,
    /// Work that uses no memory of the pool.
    Delay {
        stream: u8,
    },
    /// The device gets on with its work.
    Advance {
        stream: u8,
        items: u8,
    },
    /// The stream is destroyed; another one gets its handle.
    Recreate {
        stream: u8,
    },
    Threshold {
        bytes: u64,
    },
    Policies {
        bits: u8,
    },
    ResetPeaks,
    /// A free that must be refused.
    Wrong {
        pick: u16,
        kind: u8,
    },
}

/// How a program's pool is set up.
#[derive(Clone, Debug)]
pub struct Setup {
    pub pages: Pages,
    pub max_bytes: u64,
    pub capacity: u64,
    pub initial_bytes: u64,
    pub release_threshold: u64,
    pub slack: f64,
    pub policies: u8,
    pub always_events: bool,
    pub watched: bool,
    /// The program says when streams change, and the pool may touch them until then.
    pub declared: bool,
    /// The most mappings.
    pub mappings: u64,
    /// Of each page.
    pub mappings_of_a_page: usize,
    /// The first call has a cache, as a program's has: so what is called is recorded from there on.
    pub first_has_cache: bool,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            pages: Pages::Movable,
            max_bytes: 0,
            capacity: u64::MAX,
            initial_bytes: 0,
            release_threshold: u64::MAX,
            slack: 0.01,
            policies: 7,
            always_events: false,
            watched: false,
            declared: false,
            mappings: 1 << 20,
            mappings_of_a_page: usize::MAX,
            first_has_cache: true,
        }
    }
}

fn size(random: &mut Random) -> u64 {
    match random.below(16) {
        0 => 0,
        1..=8 => random.log_uniform(15),
        9..=14 => random.log_uniform(24),
        _ => random.log_uniform(29),
    }
}

/// A random step for a driver that keeps about `most` blocks.
pub fn random_op(random: &mut Random, blocks: usize, most: usize) -> Op {
    let pick = random.next() as u16;
    let stream = random.below(u64::from(PLACES)) as u8;
    let event = random.below(u64::from(EVENTS)) as u8;
    let grow = random.below(2 * most as u64) >= blocks as u64;
    match random.below(1000) {
        0..800 if grow => Op::Alloc {
            bytes: size(random),
            align: if random.one_in(4) {
                1 << random.below(17)
            } else {
                0
            },
            stream,
            touch: !random.one_in(8),
        },
        0..600 => Op::Free { pick },
        600..740 => Op::FreeOn {
            pick,
            stream,
            hooks: random.one_in(2),
        },
        740..800 => Op::FreeSynced { pick },
        800..830 => Op::Touch { pick },
        830..840 => Op::Share { pick, stream },
        840..850 => Op::Copy {
            pick,
            stream,
            free: random.next() as u8,
        },
        850..860 => Op::Batch {
            sizes: (0..random.below(6)).map(|_| size(random)).collect(),
            stream,
        },
        860..870 => Op::FreeBatch {
            pick,
            count: random.below(6) as u8,
            stream,
        },
        870..872 => Op::Warmup {
            bytes: size(random),
            count: random.below(6) as u8,
            stream,
        },
        872..876 => Op::Trim {
            keep: random.log_uniform(30),
        },
        876..878 => Op::Squeeze,
        878..890 => Op::Record { event, stream },
        890..902 => Op::Wait { event, stream },
        902..908 => Op::SyncEvent { event },
        908..914 => Op::SyncStream { stream },
        914..916 => Op::SyncAll,
        916..926 => Op::Delay { stream },
        926..976 => Op::Advance {
            stream,
            items: random.below(32) as u8,
        },
        976..980 => Op::Recreate { stream },
        980..983 => Op::Threshold {
            bytes: if random.one_in(2) {
                u64::MAX
            } else {
                random.log_uniform(30)
            },
        },
        983..986 => Op::Policies {
            bits: random.below(8) as u8,
        },
        986..988 => Op::ResetPeaks,
        _ => Op::Wrong {
            pick,
            kind: random.next() as u8,
        },
    }
}

/// Limits worth trying.
pub const LIMITS: [u64; 6] = [0, 0, 7 * M + 5 * K, 64 * M, 200 * M, 1024 * M];
