//! What every layer shares: units, errors, ranked locks.

pub mod error;
pub mod lock;
pub mod units;
