//! Pools shared between processes: what is exported, and pools made of what is imported.

use super::registry::POOLS;
use super::{backends, end, order};
use crate::backend::cuda;
use crate::backend::import::{Importer, Line};
use crate::backend::ipc::socket::{self, Socket};
use crate::backend::ipc::token::{BYTES, Token, What};
use crate::base::error::Error;
use crate::base::units::{Addr, EventHandle};
use crate::config::{Config, MemoryKind};
use crate::pool::{Pool, refusal};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// A token as a program has it.
pub type Bytes = [u8; BYTES];

/// The pool, and the process as one that has a porter's thread.
fn exporting(handle: usize) -> Result<Arc<Pool>, Error> {
    end::prepare_workers()?;
    let pool = POOLS.get(handle)?;
    match end::exiting() {
        true => Err(Error::Unloaded), // nobody would end the porter
        false => Ok(pool),
    }
}

/// A descriptor by which other processes can import a pool.
pub fn export(handle: usize) -> Result<OwnedFd, Error> {
    exporting(handle)?.export()
}

/// A token for a block.
pub fn export_pointer(handle: usize, at: Addr) -> Result<Bytes, Error> {
    let token = exporting(handle)?.export_pointer(at);
    token.map(|token| token.bytes()).map_err(end::find_owner)
}

/// A token for an event.
pub fn export_event(handle: usize, event: EventHandle) -> Result<Bytes, Error> {
    let pool = exporting(handle)?;
    match pool.config().memory {
        MemoryKind::Host => order::known_event(event)?,
        MemoryKind::Device | MemoryKind::Pinned => order::drivers_event(event)?,
    }
    pool.export_event(event).map(|token| token.bytes())
}

/// A pool of what another process exports, by the descriptor that it gave.
pub fn import(door: BorrowedFd<'_>) -> Result<usize, Error> {
    let number = door.as_raw_fd();
    let door = Socket::through(door).map_err(backends::error)?.ok_or_else(|| {
        Error::InvalidArgument(format!(
            "descriptor {number} is not what weir_pool_export gave; pass it on by weir_ipc_send_descriptor or inherit it, \
             not as a number"
        ))
    })?;
    let line = Line::open(&door).map_err(refusal)?;
    let config = config_of(&line)?;
    end::install(config, |config, backend| {
        Pool::of_imported(config, Importer::new(line, backend))
    })
}

/// Options for what is to be imported.
fn config_of(line: &Line) -> Result<Config, Error> {
    let welcome = line.welcome;
    let memory = [MemoryKind::Device, MemoryKind::Host]
        .into_iter()
        .find(|&kind| kind as u64 == welcome.memory);
    let memory =
        memory.ok_or_else(|| Error::NotSupported("it is a kind of memory that is not shared".into()))?;
    let mut device = 0;
    if memory == MemoryKind::Device {
        let driver = cuda::open().map_err(Error::DriverUnavailable)?;
        let found = driver.device_numbered(welcome.device).map_err(backends::error)?;
        device = found.ok_or_else(|| {
            Error::NotSupported(
                "the pool is on a device that this process cannot see; look at CUDA_VISIBLE_DEVICES".into(),
            )
        })?;
    }
    Ok(Config {
        memory,
        device,
        ipc_handle_types: 1,
        name: "imported pool".into(),
        ..Config::default()
    })
}

fn read(token: &Bytes, what: What) -> Result<Token, Error> {
    Token::read(token, what).ok_or_else(|| {
        let gave = match what {
            What::Block => "weir_pool_export_pointer",
            What::Event => "weir_pool_export_event",
        };
        Error::InvalidArgument(format!("the token is not what {gave} gave"))
    })
}

/// The block of a token: address and bytes.
pub fn import_pointer(pool: &Pool, token: &Bytes) -> Result<(Addr, u64), Error> {
    pool.import_pointer(&read(token, What::Block)?)
}

/// The event of a token.
pub fn import_event(pool: &Pool, token: &Bytes) -> Result<EventHandle, Error> {
    pool.import_event(&read(token, What::Event)?)
}

/// Sends a descriptor through a socket.
pub fn send_descriptor(through: BorrowedFd<'_>, file: BorrowedFd<'_>) -> Result<(), Error> {
    socket::send_descriptor(through, file).map_err(backends::error)
}

/// Receives one.
pub fn receive_descriptor(through: BorrowedFd<'_>) -> Result<OwnedFd, Error> {
    let got = socket::receive_descriptor(through).map_err(backends::error)?;
    got.ok_or_else(|| Error::Stale("the other end of the socket was closed, or sent no descriptor".into()))
}
