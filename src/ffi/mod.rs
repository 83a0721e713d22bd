//! The C interface: checks, conversions, one panic guard, the last error. `include/weir.h` is generated from
//! this folder, and the comments of the exported functions are the header's.
//!
//! Invariants: no panic leaves an exported function: each passes through `guard`, but for the text getters and what
//! threads' caches serve, in which nothing can panic. (The C++ exception of `weir_torch_alloc_or_throw` is none.) An output is
//! written only on success; a pool handle is never dereferenced; a number that stands for an enum is checked before it is
//! one. In a forked child a call returns before it takes any lock.

// The types carry the names they have in C, and the safety contract of an export is its C comment.
#![allow(non_camel_case_types, clippy::missing_safety_doc)]

pub mod access;
mod args;
pub mod batch;
pub mod blocks;
pub mod capture;
pub mod copies;
pub mod frameworks;
pub mod frees;
mod guard;
pub mod host_streams;
pub mod options;
pub mod order;
pub mod pool;
pub mod share;
pub mod stats;
pub mod status;
pub mod text;
pub mod types;
mod valgrind;

/// The shared library stays loaded until the process ends; a shared object that the static one is part of may be closed.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_UNLOAD: extern "C" fn() = unload;

extern "C" fn unload() {
    crate::lifecycle::threads::unload();
}
