//! What the integration tests share; each uses a part of it.

#![allow(dead_code)]

pub mod cached;
#[allow(unsafe_code)]
pub mod cuda;
pub mod device;
pub mod hook;
pub mod op;
pub mod player;
pub mod program;
pub mod random;
pub mod real;
pub mod recorded;
pub mod rounds;
pub mod run;
pub mod sim;
#[allow(unsafe_code)]
pub mod standin;
pub mod taken;
pub mod threads;
pub mod work;

use std::sync::Arc;
use weir::backend::counting::Counting;
use weir::config::{Config, MemoryKind};

/// A kibibyte.
pub const K: u64 = 1 << 10;
/// A mebibyte.
pub const M: u64 = 1 << 20;
/// The granularity of the backends used here.
pub const SLOT: u64 = 2 * M;

/// The default options, for host memory.
pub fn config() -> Config {
    Config {
        memory: MemoryKind::Host,
        ..Config::default()
    }
}

/// The default options with a limit.
pub fn limited(max_bytes: u64) -> Config {
    Config {
        max_bytes,
        ..config()
    }
}

/// What a pool may do with its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Map them anywhere.
    Movable,
    /// Keep every block in one of them.
    Apart,
    /// The same; they come with their addresses.
    Placed,
}

impl Pages {
    /// Each kind.
    pub const ALL: [Pages; 3] = [Pages::Movable, Pages::Apart, Pages::Placed];

    /// Such memory, with checks on.
    pub fn memory(self) -> Arc<Counting> {
        match self {
            Pages::Placed => Counting::with_addresses(true),
            _ => Counting::new(true),
        }
    }
}
