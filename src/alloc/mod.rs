//! The allocator proper: the books of one pool. Nothing here calls the backend or blocks; the pool asks for
//! a plan, carries it out with the backend, and reports back.
//!
//! ```text
//! small blocks: slab → heap      large blocks: heap      a miss: plan (wake, move, join, grow) → transit → pages
//! ```
//!
//! A thread cache will stand in front of `heap` and hold slab blocks only.

pub mod apart;
pub mod bins;
pub mod capture;
pub mod check;
pub mod heap;
pub mod join;
pub mod node;
pub mod order;
pub mod page;
pub mod plan;
pub mod release;
pub mod rest;
pub mod size;
pub mod slab;
pub mod space;
pub mod transit;
pub mod windows;
