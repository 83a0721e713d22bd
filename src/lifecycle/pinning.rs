//! Memory of the program's own that is page-locked for copies.
//!
//! Locks: none; the backend locks for itself.

use super::{backends, end};
use crate::backend::cuda;
use crate::backend::cuda::registrations::{self, Refusal};
use crate::base::error::Error;
use crate::base::units::Addr;

/// Page-locks memory.
pub fn register(at: Addr, bytes: u64) -> Result<(), Error> {
    end::prepare()?;
    let driver = cuda::open().map_err(Error::DriverUnavailable)?;
    end::prepare_devices()?;
    registrations::register(driver, at, bytes).map_err(|refusal| match refusal {
        Refusal::Mistake(why) => Error::InvalidArgument(why),
        Refusal::Backend(error) => backends::error(error),
    })
}

/// Lets go of what was page-locked.
pub fn unregister(at: Addr) -> Result<(), Error> {
    match registrations::unregister(at).map_err(backends::error)? {
        true => Ok(()),
        false => Err(Error::InvalidArgument(format!(
            "nothing is registered that begins at {at}; pass what weir_host_register was given"
        ))),
    }
}
