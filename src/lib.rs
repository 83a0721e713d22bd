//! weir: a stream-ordered memory pool for GPU, pinned and plain host memory, with a C interface.
//!
//! Layers, each using only those below it (`tests/layers.rs` checks the imports):
//!
//! ```text
//! ffi → lifecycle → pool → alloc → backend → observe → base
//! ```

pub mod alloc;
#[allow(unsafe_code)]
pub mod backend;
pub mod base;
pub mod config;
#[allow(unsafe_code)]
pub mod ffi;
pub mod lifecycle;
pub mod observe;
pub mod pool;
