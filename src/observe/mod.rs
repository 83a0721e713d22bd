//! What a pool tells about itself.

pub mod stats;
