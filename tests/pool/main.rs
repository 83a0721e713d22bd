//! The pool on memory of the host, counted, simulated or real: one program, since most of what there is to build is the same for all.
//! What looks at the whole process, or ends it, is a test program of its own beside this folder.

#[path = "../common/mod.rs"]
mod common;
#[path = "../../benches/trace/mod.rs"]
#[allow(dead_code)] // the benchmark uses more of it
mod trace;

mod ahead;
mod apart;
mod cached_batches;
mod cached_order;
mod cached_threads;
mod caches;
mod captures;
mod chunks;
mod company;
mod end;
mod evict;
mod faults;
mod guests;
mod limit;
mod loader;
mod out_of_memory;
mod pages;
mod partition;
mod phases;
mod pressure;
mod programs;
mod real_programs;
mod replay;
mod replay_real;
mod replay_threads;
mod rounds;
mod several;
mod share;
mod share_strangers;
mod sharing;
mod sole;
mod solitude;
mod starving;
mod steady;
mod stream_events;
mod stream_order;
mod threads;
mod training;
mod turns;
