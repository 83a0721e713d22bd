//! The backend that a pool's options ask for. The CUDA driver is opened by the first pool that needs it.

use super::{end, environment};
use crate::backend::{Backend, BackendError, cuda, host, nvtx};
use crate::base::error::Error;
use crate::config::{Config, DeviceMemory, MemoryKind};
use std::sync::Arc;

/// A backend for a new pool.
pub fn create(config: &Config) -> Result<Arc<dyn Backend>, Error> {
    match config.memory {
        MemoryKind::Host if config.ipc_handle_types != 0 => Ok(host::HostBackend::shared().map_err(error)?),
        MemoryKind::Host => Ok(host::HostBackend::new().map_err(error)?),
        MemoryKind::Device | MemoryKind::Pinned => of_driver(config),
    }
}

fn of_driver(config: &Config) -> Result<Arc<dyn Backend>, Error> {
    let driver = cuda::open().map_err(Error::DriverUnavailable)?;
    // after the driver has been opened, so that this handler runs before the driver's own
    end::prepare_devices()?;
    let devices = driver.devices();
    if !(0..devices).contains(&config.device) {
        return Err(Error::InvalidArgument(format!(
            "device {} does not exist: this machine has {devices}, numbered from 0; ask for WEIR_MEMORY_HOST, or for \
             device -1 (WEIR_DEVICE_HOST), if you want host memory",
            config.device
        )));
    }
    let (place, shown) = match config.memory {
        MemoryKind::Pinned => (cuda::Place::Host(config.numa_node), false),
        _ => (
            cuda::Place::Device,
            environment::nvtx(environment::process_variable)?,
        ),
    };
    let options = cuda::Options {
        device: config.device,
        place,
        // tools know blocks in plain memory only
        plain: shown || config.device_memory == DeviceMemory::Plain,
        gpu_direct_rdma: config.gpu_direct_rdma && place == cuda::Place::Device,
        handle_types: config.ipc_handle_types,
    };
    let backend = cuda::CudaBackend::new(driver, options).map_err(error)?;
    match shown {
        true => nvtx::watched(backend).map_err(error),
        false => Ok(backend),
    }
}

/// An error of a backend where no pool and no stream is at hand.
pub fn error(error: BackendError) -> Error {
    match error {
        BackendError::Unloaded => Error::Unloaded,
        BackendError::Lost(why) => Error::DeviceLost(why),
        BackendError::Capturing(why) => Error::Capture(why),
        BackendError::NotSupported(why) => Error::NotSupported(why),
        BackendError::InvalidStream(why) | BackendError::OutOfMemory(why) | BackendError::Other(why) => {
            Error::Backend(why)
        }
    }
}
