//! The process-wide pool of each device, and the pool that is current there.
//!
//! Invariant: a device has at most one live default pool of each kind of memory; who asks while another thread creates it
//! waits for that one. A current or default pool that was ended is forgotten by whoever asks next.
//!
//! Locks: `CREATING` is held while a default pool is created, so by calls that would have to wait for it
//! anyway. Asking for a pool that exists takes no lock.

use super::end;
use super::registry::POOLS;
use crate::base::error::Error;
use crate::config::{Config, MemoryKind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// The device number of plain host memory.
pub const HOST: i32 = -1;
/// Devices -1 to `DEVICES - 2` have a place in the table.
const DEVICES: usize = 65;

struct Device {
    /// The handle of the default pool; 0: none yet.
    default: AtomicUsize,
    /// The same of the host's memory that is page-locked for the device; of the host: what staged copies go through, which
    /// nobody else is given.
    pinned: AtomicUsize,
    /// The handle set by the program; 0: the default is current.
    current: AtomicUsize,
}

static TABLE: [Device; DEVICES] = [const {
    Device {
        default: AtomicUsize::new(0),
        pinned: AtomicUsize::new(0),
        current: AtomicUsize::new(0),
    }
}; DEVICES];
static CREATING: Mutex<()> = Mutex::new(());

fn device(number: i32) -> Result<&'static Device, Error> {
    usize::try_from(i64::from(number) + 1).ok().and_then(|index| TABLE.get(index)).ok_or_else(|| {
        Error::InvalidArgument(format!(
            "device {number} does not exist: pass -1 (WEIR_DEVICE_HOST) for host memory, or a GPU's ordinal below {}",
            DEVICES - 1
        ))
    })
}

/// The default pool of a device, created with the options of `config` when there is none.
pub fn default_pool(number: i32, config: impl FnOnce() -> Result<Config, Error>) -> Result<usize, Error> {
    let kind = if number == HOST {
        MemoryKind::Host
    } else {
        MemoryKind::Device
    };
    default_of(&device(number)?.default, number, kind, config)
}

/// The default pool of page-locked memory for a device, created with the options of `config` when there is none.
pub fn default_pinned_pool(
    number: i32,
    config: impl FnOnce() -> Result<Config, Error>,
) -> Result<usize, Error> {
    if number == HOST {
        return Err(Error::InvalidArgument(
            "memory is page-locked for a device: pass the ordinal of one, not WEIR_DEVICE_HOST".into(),
        ));
    }
    staging_pool(number, config)
}

/// The pool that staged copies on a device's streams, or on the host's, go through.
pub fn staging_pool(number: i32, config: impl FnOnce() -> Result<Config, Error>) -> Result<usize, Error> {
    let kind = if number == HOST {
        MemoryKind::Host
    } else {
        MemoryKind::Pinned
    };
    default_of(&device(number)?.pinned, number, kind, config)
}

fn default_of(
    place: &AtomicUsize,
    number: i32,
    kind: MemoryKind,
    config: impl FnOnce() -> Result<Config, Error>,
) -> Result<usize, Error> {
    let known = place.load(Ordering::Acquire);
    if POOLS.is_live(known) {
        return Ok(known);
    }
    let _creating = CREATING.lock().unwrap_or_else(PoisonError::into_inner);
    let known = place.load(Ordering::Acquire);
    if POOLS.is_live(known) {
        return Ok(known);
    }
    if end::exiting() {
        // Nothing would end it any more.
        return Err(Error::Unloaded);
    }
    let mut config = config()?;
    config.memory = kind;
    config.device = number.max(0);
    config.name = match kind {
        MemoryKind::Host => "default host pool".into(),
        MemoryKind::Device => format!("default pool of device {number}"),
        MemoryKind::Pinned => format!("default pinned pool for device {number}"),
    };
    let handle = end::create(config)?;
    place.store(handle, Ordering::Release);
    Ok(handle)
}

/// The pool that the program set for a device, or else its default pool.
pub fn current_pool(number: i32, config: impl FnOnce() -> Result<Config, Error>) -> Result<usize, Error> {
    let current = device(number)?.current.load(Ordering::Acquire);
    if POOLS.is_live(current) {
        Ok(current)
    } else {
        default_pool(number, config)
    }
}

/// The same, if there is one already.
pub fn known_pool(number: i32) -> Option<usize> {
    let device = device(number).ok()?;
    [&device.current, &device.default]
        .map(|place| place.load(Ordering::Acquire))
        .into_iter()
        .find(|handle| POOLS.is_live(*handle))
}

/// The GPUs that may have a pool.
pub fn gpus() -> impl Iterator<Item = i32> {
    0..DEVICES as i32 - 1
}

/// Makes a pool current on a device; `None` returns to the default.
pub fn set_current(number: i32, handle: Option<usize>) -> Result<(), Error> {
    let device = device(number)?;
    if let Some(handle) = handle {
        let pool = POOLS.get(handle)?;
        let config = pool.config();
        let fits = match config.memory {
            MemoryKind::Host => number == HOST,
            MemoryKind::Device => number == config.device,
            MemoryKind::Pinned => false,
        };
        if !fits {
            let holds = match config.memory {
                MemoryKind::Host => "plain host memory".into(),
                MemoryKind::Device => format!("memory of device {}", config.device),
                MemoryKind::Pinned => format!("host memory that is page-locked for device {}", config.device),
            };
            return Err(Error::InvalidArgument(format!(
                "pool \"{}\" holds {holds}, so it cannot be the pool of device {number}",
                config.name
            )));
        }
    }
    device.current.store(handle.unwrap_or(0), Ordering::Release);
    Ok(())
}

/// Every device returns to its default pool.
pub fn forget_current() {
    for device in &TABLE {
        device.current.store(0, Ordering::Release);
    }
}

/// The live default pools.
pub fn handles() -> impl Iterator<Item = usize> {
    TABLE
        .iter()
        .flat_map(|device| [&device.default, &device.pinned])
        .map(|place| place.load(Ordering::Acquire))
        .filter(|handle| POOLS.is_live(*handle))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_outside_the_table_are_refused() {
        for number in [-2, i32::MIN, DEVICES as i32 - 1, i32::MAX] {
            assert!(
                matches!(device(number), Err(Error::InvalidArgument(_))),
                "{number}"
            );
        }
        for number in [HOST, 0, DEVICES as i32 - 2] {
            assert!(device(number).is_ok(), "{number}");
        }
    }

    #[test]
    fn a_handle_that_is_no_pool_cannot_become_current() {
        assert_eq!(
            set_current(HOST, Some(12)),
            Err(Error::InvalidPool { handle: 12 })
        );
    }
}
