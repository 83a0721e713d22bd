//! The kinds of backend calls, and a counter for each. Used by the decorators and stand-ins.

use std::sync::atomic::{AtomicU64, Ordering};

/// A call of the backend that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// `Backend::reserve`
    Reserve,
    /// `Backend::unreserve`
    Unreserve,
    /// `Backend::create`
    Create,
    /// `Backend::release`
    Release,
    /// `Backend::map`
    Map,
    /// `Backend::unmap`
    Unmap,
    /// `Backend::timeline`
    Timeline,
    /// `Backend::record`
    Record,
    /// `Backend::query`
    Query,
    /// `Backend::wait`
    Wait,
    /// `Backend::synchronize`
    Synchronize,
    /// `Backend::synchronize_all`
    SynchronizeAll,
    /// `Backend::export`
    Export,
    /// `Backend::import`
    Import,
    /// `Backend::device_number`
    DeviceNumber,
}

impl Call {
    /// Every kind, in order of declaration.
    pub const ALL: [Call; 15] = [
        Call::Reserve,
        Call::Unreserve,
        Call::Create,
        Call::Release,
        Call::Map,
        Call::Unmap,
        Call::Timeline,
        Call::Record,
        Call::Query,
        Call::Wait,
        Call::Synchronize,
        Call::SynchronizeAll,
        Call::Export,
        Call::Import,
        Call::DeviceNumber,
    ];
}

/// How many calls of each kind were made.
#[derive(Debug, Default)]
pub struct Calls([AtomicU64; Call::ALL.len()]);

impl Calls {
    /// Counts one.
    pub fn add(&self, call: Call) {
        self.0[call as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Calls of this kind so far.
    pub fn of(&self, call: Call) -> u64 {
        self.0[call as usize].load(Ordering::Relaxed)
    }

    /// Calls of all kinds so far.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|n| n.load(Ordering::Relaxed)).sum()
    }
}
