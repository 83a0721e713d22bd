//! The allocator proper.
