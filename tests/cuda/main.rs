//! The CUDA backend on the stand-in driver. Each test is a process of its own: this program again, for that test alone.

#![allow(unsafe_code)] // The driver and weir are called as C calls them.

#[path = "../common/mod.rs"]
mod common;

mod backend;
mod copies;
mod faults;
mod finalizing;
mod graphs;
mod handles;
mod loss;
mod mistakes;
mod pinned;
mod programs;
mod solitude;
mod still;
mod streams;
