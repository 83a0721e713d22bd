//! The allocator proper: the books of one pool. Nothing here calls the backend or blocks; the pool asks for
//! a plan, carries it out with the backend, and reports back.
//!
//! ```text
//! small blocks: slab → heap      large blocks: heap      a miss: plan (wake, move, join, grow) → transit → pages
//! ```
//!
//! In front of `heap` stands a `cache` a thread and stream, and `directory`, which tells every thread without a lock
//! what may go there.

pub mod ahead;
pub mod apart;
pub mod bins;
mod by_heart;
pub mod cache;
pub mod capture;
pub mod check;
pub mod company;
pub mod coverage;
pub mod depot;
mod difference;
pub mod directory;
pub mod donors;
pub mod entries;
mod exact;
pub mod extents;
mod figures;
mod first;
pub mod flush;
pub mod gate;
mod guests;
mod guide;
pub mod handover;
pub mod heap;
pub mod inside;
pub mod join;
pub mod kept;
pub mod leeway;
pub mod lend;
pub mod limbo;
pub mod limits;
pub mod lists;
pub mod look;
mod make_up;
mod moves;
pub mod node;
pub mod note;
pub mod order;
pub mod page;
mod partition;
mod period;
pub mod plan;
pub mod predictor;
mod reader;
pub mod recording;
pub mod release;
pub mod replay;
pub mod rest;
pub mod rounds;
pub mod shape;
pub mod sharing;
pub mod size;
pub mod slab;
mod sole;
pub mod space;
pub mod spare;
pub mod split;
pub mod standing;
mod takeover;
pub mod tape;
pub mod transit;
pub mod turns;
mod uses;
pub mod waited;
pub mod windows;
