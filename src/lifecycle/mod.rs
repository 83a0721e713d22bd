//! Which pools there are, and how they end: handles, per-device defaults, the ordering hooks that every pool
//! learns of, copies and calls that wait for work, finalize, exit and fork.
//!
//! A handle is a checked number, never an address, so a wrong or stale one is an error and not a crash.
//! Nothing on the heap belongs to this layer while no pool is live.
//!
//! Locks, outermost first: `end::ENDING`, `defaults::CREATING`, then the registry's free list, then one slot.
//! No lock of the registry is held while a pool or a backend is called.

#![forbid(unsafe_code)]

pub mod backends;
pub mod copies;
pub mod defaults;
pub mod deferred;
pub mod end;
pub mod environment;
pub mod message;
pub mod order;
pub mod pinning;
pub mod registry;
pub mod share;
pub mod threads;
