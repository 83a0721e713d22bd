//! Pools whose memory another process made. They allocate nothing: a block comes by its token, in a window of its own,
//! and is freed in stream order like any other. Once its work is complete the window goes at once, and the exporter has
//! the block back; completion is looked at whenever the pool is called.

use super::turn::Turn;
use super::{Pool, translate};
use crate::backend::Backend;
use crate::backend::import::{Importer, Refusal, Stay};
use crate::backend::ipc::token::Token;
use crate::base::error::Error;
use crate::base::units::{Addr, EventHandle, StreamHandle};
use crate::config::Config;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Why something could not be imported.
pub fn refusal(refusal: Refusal) -> Error {
    match refusal {
        Refusal::Invalid(why) => Error::InvalidArgument(why),
        Refusal::Stale(why) => Error::Stale(why),
        Refusal::Failed(error) => translate(error, StreamHandle(0)),
    }
}

impl Pool {
    /// A pool of what comes through `importer`.
    pub fn of_imported(config: Config, importer: Arc<Importer>) -> Result<Pool, Error> {
        let config = Config {
            max_bytes: 0,
            initial_bytes: 0,
            growth_ahead: 0,
            // what is freed is of no use here
            release_threshold: 0,
            thread_caches: false,
            on_oom: None,
            ..config
        };
        let mut pool = Pool::new(config, importer.clone())?;
        pool.importer = Some(importer);
        Ok(pool)
    }

    fn importer(&self) -> Result<Stay<'_>, Error> {
        // before the books are looked at: if the pool ends after that, its importer closes only once what was borrowed is back
        let stay = self.importer.as_deref().map(Importer::stay);
        drop(self.books()?);
        if !self.backend.usable() {
            return Err(Error::Unloaded);
        }
        stay.ok_or_else(|| {
            Error::NotSupported(format!(
                "pool \"{}\" is not imported; tokens are for pools that weir_pool_import gave",
                self.config.name
            ))
        })
    }

    /// The block of a token: its address in this process, and its bytes.
    pub fn import_pointer(&self, token: &Token) -> Result<(Addr, u64), Error> {
        let importer = self.importer()?;
        self.look_about();
        let window = importer.borrow(token).map_err(refusal)?;
        self.backend.creates.fetch_add(1, Ordering::Relaxed);
        let _grow = Turn::take(self);
        let covered = self.directory.cover(window.at.0, window.bytes);
        let heap = covered.map_err(|error| translate(error, StreamHandle(0)));
        match heap.and_then(|()| self.books()) {
            Ok(mut heap) => {
                heap.borrow(
                    window.at.0,
                    window.handle,
                    window.bytes,
                    window.block.0,
                    window.len,
                );
                Ok((window.block, window.len))
            }
            Err(error) => {
                let release = || self.backend.release(window.handle, window.bytes);
                let _ = release().or_else(|_| release());
                Err(error)
            }
        }
    }

    /// The event of a token, as one of this process.
    pub fn import_event(&self, token: &Token) -> Result<EventHandle, Error> {
        self.importer()?.event(token).map_err(refusal)
    }

    /// An imported pool has nothing to hand out but what is imported.
    pub(super) fn check_allocates(&self) -> Result<(), Error> {
        match self.importer {
            None => Ok(()),
            Some(_) => Err(Error::NotSupported(format!(
                "pool \"{}\" is imported and allocates nothing; allocate in the process that exports it, and import the \
                 pointer",
                self.config.name
            ))),
        }
    }

    /// What other processes have given back counts from now on, and what they are to have back they get.
    pub(super) fn look_about(&self) {
        match self.importer {
            None => self.catch_up(),
            Some(_) => self.apply_threshold(),
        }
    }
}
