//! What every layer shares: units, errors, ranked locks.

pub mod bits;
pub mod error;
pub mod fair;
pub mod lock;
pub mod units;
