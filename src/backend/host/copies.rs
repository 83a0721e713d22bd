//! Copies on host streams, done by the stream's worker, and points in its work that others may wait for.
//!
//! Locks: none of its own.

use super::stream::{self, Point};
use super::{gate, streams};
use crate::backend::staging::{CopyQueue, Moment};
use crate::backend::{BackendError, transfer};
use crate::base::units::{Addr, StreamHandle};
use std::sync::Arc;

/// A program's host stream.
#[derive(Clone, Copy, Debug)]
pub struct Stream(pub StreamHandle);

impl Stream {
    /// Two numbers that tell it from all other streams.
    pub fn identity(self) -> (u64, u64) {
        (0, streams::id_of(self.0).0)
    }

    fn find(self) -> Result<Arc<stream::Stream>, BackendError> {
        gate::for_program()?;
        let unknown = || BackendError::InvalidStream(format!("{} is not a live host stream", self.0));
        streams::find(self.0).ok_or_else(unknown)
    }
}

impl CopyQueue for Stream {
    fn copy(&self, to: Addr, from: Addr, bytes: u64) -> Result<(), BackendError> {
        streams::enqueue(self.0, Box::new(move || transfer::copy(to, from, bytes as usize)))
    }

    fn moment(&self) -> Result<Arc<dyn Moment>, BackendError> {
        Ok(Arc::new(self.find()?.point()))
    }

    fn may_wait(&self) -> Result<(), BackendError> {
        self.find()?.may_wait()
    }
}

impl Moment for Point {
    fn is_over(&self) -> bool {
        self.reached()
    }

    fn wait(&self) -> Result<(), BackendError> {
        self.wait()
    }
}
