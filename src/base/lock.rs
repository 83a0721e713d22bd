//! Ranked locks.
