//! The CUDA backend: memory of a GPU by the driver's interface, which is opened at run time.
//!
//! Memory is mapped where the pool wants it ([`memory`]), or, if that is asked for or nothing else exists, comes with its
//! address: from `cuMemAlloc`, or, for memory of the host, registered with the driver ([`registered`]). A backend has a reference to the primary context of its device
//! ([`context`]) until its pool ends. The caller's current context and capture mode are left as they were found.
//!
//! Three things end its work: a fork and the end of the driver (`usable` is false then, nothing is called any more), and
//! the loss of the context (a sticky error, or the device was reset): then requests fail with `Lost`, events are left
//! alone, nothing is waited for, and memory is given back to the driver as before.
//!
//! Locks, which nest in this order: `memory` of one backend; those of [`streams`] and [`context`]. Calls that name a
//! stream take `memory` never.

mod captures;
mod context;
pub mod copies;
mod driver;
mod graphs;
pub mod hooks;
mod later;
mod memory;
mod registered;
pub mod registrations;
mod share;
mod streams;
mod symbols;

pub use driver::{Driver, open};

use super::{Access, Backend, BackendError, Event};
use crate::base::units::{Addr, CaptureId, EventHandle, PageHandle, StreamHandle, StreamId, Timeline};
use context::{Context, RawEvent, relax};
use cuda_driver_sys::{CUdevice_attribute, CUmemAllocationGranularity_flags, CUmemAllocationType, CUresult};
use graphs::Gone;
use later::{AllocationProp, LOCATION_DEVICE, LOCATION_HOST_NUMA, Location};
use memory::Memory;
use std::ffi::{c_int, c_uint};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use streams::Streams;

/// No page is smaller: the granularity of every GPU so far, and of host pools.
const GRANULARITY: u64 = 2 << 20;
/// Mappings of all pools of a device. An H200 with driver 580 takes 524,032 in a context and is as fast with 400,000
/// as with a thousand.
const MAPPINGS: u64 = 400_000;
/// The same for one pool of the host's memory: each is an area of the process, of which the kernel allows 65,530 by default.
const MAPPINGS_OF_HOST: u64 = 16_384;
/// Those of one page of the host's memory: each costs a page table of the process, 2 KiB for each MiB.
const MAPPINGS_OF_A_PAGE: usize = 32;
/// And all that have access to such a page, the host among them, each counted for each mapping: once asked for more a driver
/// (580.159.04, H200, 2026-11-29) refuses access to it for good, also when all of it has been unmapped.
const SHARES_OF_A_PAGE: usize = 254;
/// An event's number: its handle, and above it the place of its context. Addresses of processes are below it.
const PLACE_SHIFT: u32 = 56;

/// Whose memory it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The device's.
    Device,
    /// The host's, page-locked, of a NUMA node; None: the one nearest to the device.
    Host(Option<i32>),
}

/// Options of a backend.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The device's ordinal.
    pub device: i32,
    /// Whose memory it is.
    pub place: Place,
    /// Memory that comes with its address, even if pages could be mapped.
    pub plain: bool,
    /// Memory that network cards can reach.
    pub gpu_direct_rdma: bool,
    /// A mask of `CUmemAllocationHandleType`: how handles are to be exported.
    pub handle_types: u32,
}

/// Memory of a GPU, or of the host for a GPU.
#[derive(Debug)]
pub struct CudaBackend {
    driver: &'static Driver,
    device: i32,
    place: Place,
    granularity: u64,
    /// None: memory comes with its address.
    memory: Option<Mutex<Memory>>,
    streams: Streams,
    /// Captures whose graphs are gone.
    gone: Arc<Gone>,
    /// This backend's share of its context's `mapped`.
    mapped: AtomicU64,
}

impl CudaBackend {
    /// A backend for a device.
    pub fn new(driver: &'static Driver, options: Options) -> Result<Arc<CudaBackend>, BackendError> {
        if !driver::usable() {
            return Err(BackendError::Unloaded);
        }
        super::process::watch_fork()?;
        let context = context::join(driver, options.device)?;
        let made = memory_of(&context, options);
        let streams = Streams::new(context); // leaves the context if there is no memory
        let (memory, granularity) = made?;
        Ok(Arc::new(CudaBackend {
            driver,
            device: options.device,
            place: options.place,
            granularity,
            memory: memory.map(Mutex::new),
            streams,
            gone: Arc::default(),
            mapped: AtomicU64::new(0),
        }))
    }

    /// May memory be asked for? Found out by asking the device, because the calls for memory work on when its context
    /// is lost; beside them this costs nothing.
    fn may_grow(&self) -> Result<Arc<Context>, BackendError> {
        let own = self.may_ask()?;
        own.probe()?;
        Ok(own)
    }

    /// May a call be made that asks for something?
    fn may_ask(&self) -> Result<Arc<Context>, BackendError> {
        driver::still_usable()?;
        let own = self.streams.own()?;
        own.alive()?;
        Ok(own)
    }

    fn pages(&self) -> Result<&Mutex<Memory>, BackendError> {
        self.memory.as_ref().ok_or_else(|| {
            BackendError::NotSupported(
                "memory that comes with its address is not mapped anywhere else".into(),
            )
        })
    }

    /// The event of a number, and its context. None once the backend has left all contexts, which it does when no event is out.
    fn event(&self, event: Event) -> Option<(RawEvent, Arc<Context>)> {
        let context = self.streams.context((event.0 >> PLACE_SHIFT) as usize)?;
        let handle = event.0 & ((1 << PLACE_SHIFT) - 1);
        Some((RawEvent(handle as usize), context))
    }

    /// The same for a call about the event, which a context that is lost does not answer.
    fn live_event(&self, event: Event) -> Result<(RawEvent, Arc<Context>), BackendError> {
        let (event, context) = self.event(event).ok_or(BackendError::Unloaded)?;
        context.verify()?;
        Ok((event, context))
    }

    /// Contexts of devices that have access and are in use, beside those whose streams were named.
    fn onlookers(&self) -> Result<Vec<Arc<Context>>, BackendError> {
        let known = self.streams.contexts();
        let others = match &self.memory {
            Some(memory) => context::lock(memory).others(),
            None => Vec::new(),
        };
        let mut joined = Vec::new();
        for device in others {
            let named = known
                .iter()
                .any(|context| context.ordinal == device && context.alive().is_ok());
            if !named && context::is_active(self.driver, device)? {
                match context::join(self.driver, device) {
                    Ok(context) => joined.push(context),
                    Err(BackendError::Lost(_)) => {} // nothing runs there any more
                    Err(error) => {
                        joined.into_iter().for_each(context::leave);
                        return Err(error);
                    }
                }
            }
        }
        Ok(joined)
    }
}

/// Memory as the options want it and the device has it, with its granularity. No memory: it comes with its address.
fn memory_of(context: &Context, options: Options) -> Result<(Option<Memory>, u64), BackendError> {
    const OF_DEVICE: c_int =
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED as c_int;
    const OF_HOST: c_int = later::HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
    let (driver, device) = (context.driver, context.device);
    let (mapping, location) = match options.place {
        Place::Device => (
            OF_DEVICE,
            Location {
                kind: LOCATION_DEVICE,
                id: options.device,
            },
        ),
        Place::Host(node) => (
            OF_HOST,
            Location {
                kind: LOCATION_HOST_NUMA,
                id: nearest(context, node)?,
            },
        ),
    };
    let can_map = driver.attribute(mapping, device)? != 0;
    let Some(calls) = driver.symbols.mapping.filter(|_| can_map && !options.plain) else {
        if options.handle_types != 0 {
            return Err(BackendError::NotSupported(
                "ipc_handle_types are for mapped memory, which this device, driver or option does not give"
                    .into(),
            ));
        }
        return Ok((None, GRANULARITY));
    };
    if options.gpu_direct_rdma
        && driver.attribute(later::GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, device)? == 0
    {
        return Err(BackendError::NotSupported(format!(
            "device {} cannot let network cards reach mapped memory; try WEIR_DEVICE_MEMORY_PLAIN",
            options.device
        )));
    }
    share::check_handle_types(context, options.handle_types)?;
    let prop = AllocationProp {
        kind: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED as c_uint,
        requested_handle_types: options.handle_types,
        location,
        win32_handle_meta_data: std::ptr::null_mut(),
        compression_type: 0,
        gpu_direct_rdma_capable: options.gpu_direct_rdma.into(),
        usage: 0,
        reserved: [0; 4],
    };
    // who exports or registers pages wants them as large as the driver recommends
    let option = match options.gpu_direct_rdma || options.handle_types != 0 {
        false => CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM,
        true => CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED,
    };
    let mut memory = Memory::new(calls, context.identity(), prop);
    let granularity = memory
        .granularity(option as u32)
        .map_err(|error| match (error, options.place) {
            (BackendError::Other(why), Place::Host(Some(node))) => {
                BackendError::Other(format!("memory of NUMA node {node}: {why}"))
            }
            (error, _) => error,
        })?;
    let granularity = granularity.max(GRANULARITY).next_power_of_two();
    if options.place != Place::Device
        && let Err(error) = memory.try_out(granularity)
    {
        return match error {
            // a container may forbid it where the device can
            BackendError::NotSupported(_) | BackendError::Other(_) if options.handle_types == 0 => {
                Ok((None, GRANULARITY))
            }
            error => Err(error),
        };
    }
    Ok((Some(memory), granularity))
}

/// The NUMA node that is meant.
fn nearest(context: &Context, node: Option<i32>) -> Result<c_int, BackendError> {
    match node {
        Some(node) => Ok(node),
        // a system without nodes has number 0
        None => Ok(context
            .driver
            .attribute(later::HOST_NUMA_ID, context.device)?
            .max(0)),
    }
}

impl Backend for CudaBackend {
    fn name(&self) -> &'static str {
        match self.place {
            Place::Device => "cuda",
            Place::Host(_) => "pinned",
        }
    }

    fn granularity(&self) -> u64 {
        self.granularity
    }

    fn mapping_limit(&self) -> u64 {
        let own = self.mapped.load(Ordering::Relaxed);
        let all = self
            .streams
            .context(0)
            .map_or(own, |context| context.mapped.load(Ordering::Relaxed));
        let left = MAPPINGS.saturating_sub(all.saturating_sub(own));
        match self.place {
            Place::Device => left,
            Place::Host(_) => left.min(MAPPINGS_OF_HOST),
        }
    }

    fn mappings_of_a_page(&self) -> usize {
        match self.place {
            Place::Device => usize::MAX,
            // every device may come to have access
            Place::Host(_) => {
                let sharers = 1 + driver::opened().map_or(0, |driver| driver.devices() as usize);
                MAPPINGS_OF_A_PAGE.min(SHARES_OF_A_PAGE / sharers).max(2)
            }
        }
    }

    fn usable(&self) -> bool {
        driver::usable()
    }

    fn is_lost(&self) -> bool {
        self.streams.is_lost()
    }

    fn reserve(&self, bytes: u64) -> Result<Addr, BackendError> {
        self.may_grow()?;
        context::lock(self.pages()?)
            .reserve(bytes, self.granularity)
            .map(Addr)
    }

    fn unreserve(&self, at: Addr, bytes: u64) -> Result<(), BackendError> {
        driver::still_usable()?;
        context::lock(self.pages()?).unreserve(at.0, bytes)
    }

    fn create(&self, bytes: u64) -> Result<PageHandle, BackendError> {
        self.may_grow()?;
        context::lock(self.pages()?).create(bytes).map(PageHandle)
    }

    fn release(&self, page: PageHandle, bytes: u64) -> Result<(), BackendError> {
        driver::still_usable()?;
        if let Some(memory) = &self.memory {
            return context::lock(memory).release(page.0, bytes);
        }
        let own = self.streams.own()?;
        if self.place != Place::Device {
            return registered::release(&own, page.0, bytes);
        }
        if own.is_gone() {
            return Ok(()); // and the memory with it
        }
        // SAFETY: an address that `create_at` gave and nobody uses, as the contract says.
        match own.give_back("cuMemFree", || unsafe { (self.driver.symbols.mem_free)(page.0) }) {
            Err(BackendError::Lost(_)) => Ok(()), // and the memory with it
            result => result,
        }
    }

    fn map(&self, at: Addr, page: PageHandle, bytes: u64) -> Result<(), BackendError> {
        let own = self.may_grow()?;
        let mut memory = context::lock(self.pages()?);
        if own.mapped.fetch_add(1, Ordering::Relaxed) >= MAPPINGS {
            own.mapped.fetch_sub(1, Ordering::Relaxed);
            return Err(BackendError::OutOfMemory(format!(
                "the pools of device {} have {MAPPINGS} mappings, which is as many as they may",
                self.device
            )));
        }
        memory.map(at.0, page.0, bytes).inspect_err(|_| {
            own.mapped.fetch_sub(1, Ordering::Relaxed);
        })?;
        self.mapped.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn unmap(&self, at: Addr, bytes: u64) -> Result<(), BackendError> {
        driver::still_usable()?;
        let own = self.streams.own()?;
        let count = context::lock(self.pages()?).unmap(at.0, bytes)?;
        self.mapped.fetch_sub(count, Ordering::Relaxed);
        own.mapped.fetch_sub(count, Ordering::Relaxed);
        Ok(())
    }

    #[inline]
    fn timeline(&self, stream: StreamHandle) -> Result<Timeline, BackendError> {
        driver::still_usable()?;
        self.streams.timeline(stream)
    }

    fn is_still(&self, stream: StreamHandle, line: Timeline) -> bool {
        driver::usable() && self.streams.is_still(stream, line)
    }

    fn is_inert(&self, stream: StreamId) -> bool {
        stream == streams::HOST
    }

    fn is_built_in(&self, stream: StreamHandle) -> bool {
        streams::is_built_in(stream) && !self.is_of_thread(stream)
    }

    fn is_of_thread(&self, stream: StreamHandle) -> bool {
        stream.0 == streams::PER_THREAD
    }

    fn has_work(&self, stream: StreamHandle, line: Timeline) -> Option<bool> {
        self.may_ask().ok()?;
        self.streams.has_work(stream, line)
    }

    fn record(&self, stream: StreamHandle) -> Result<Event, BackendError> {
        let (event, place) = self.streams.record(stream)?;
        Ok(Event(event.0 as u64 | (place as u64) << PLACE_SHIFT))
    }

    fn query(&self, event: Event) -> Result<bool, BackendError> {
        const NOT_READY: u32 = CUresult::CUDA_ERROR_NOT_READY as u32;
        if event == Event::COMPLETE {
            return Ok(true);
        }
        let (event, context) = self.live_event(event)?;
        let _mode = relax(self.driver)?;
        // SAFETY: an event that `record` gave and nobody has forgotten.
        match unsafe { (self.driver.symbols.event_query)(event.handle()) } {
            NOT_READY => Ok(false),
            code => context.check("cuEventQuery", code).map(|()| true),
        }
    }

    fn wait(&self, stream: StreamHandle, event: Event) -> Result<(), BackendError> {
        if event == Event::COMPLETE {
            return Ok(());
        }
        if stream == StreamHandle::HOST {
            return self.synchronize(event);
        }
        self.may_ask()?;
        let named = self.streams.usable(stream)?;
        let (event, _context) = self.live_event(event)?;
        // SAFETY: an event that `record` gave and nobody has forgotten, and the caller's stream.
        let code = unsafe { (self.driver.symbols.stream_wait_event)(named.stream, event.handle(), 0) };
        self.streams.check("cuStreamWaitEvent", code)
    }

    fn synchronize(&self, event: Event) -> Result<(), BackendError> {
        if event == Event::COMPLETE {
            return Ok(());
        }
        let (event, context) = self.live_event(event)?;
        let _mode = relax(self.driver)?;
        // SAFETY: an event that `record` gave and nobody has forgotten.
        context.check("cuEventSynchronize", unsafe {
            (self.driver.symbols.event_synchronize)(event.handle())
        })
    }

    fn forget(&self, event: Event) {
        if event != Event::COMPLETE
            && driver::usable()
            && let Some((event, context)) = self.event(event)
        {
            context.put_back(event);
            drop(context);
            self.streams.take_back();
        }
    }

    fn synchronize_all(&self) -> Result<(), BackendError> {
        driver::still_usable()?;
        let onlookers = self.onlookers()?;
        let mut contexts = self.streams.contexts().into_iter();
        let result = contexts.try_for_each(|context| context.drain());
        let result = result.and_then(|()| onlookers.iter().try_for_each(|context| context.drain()));
        onlookers.into_iter().for_each(context::leave);
        result
    }

    fn blocks_in_one_page(&self) -> bool {
        self.memory.is_none()
    }

    fn pages_have_addresses(&self) -> bool {
        self.memory.is_none()
    }

    fn create_at(&self, bytes: u64) -> Result<(Addr, PageHandle), BackendError> {
        let own = self.may_grow()?;
        if self.memory.is_some() {
            return Err(BackendError::NotSupported(
                "mapped memory has no address of its own".into(),
            ));
        }
        if let Place::Host(node) = self.place {
            let at = registered::create(&own, bytes, node)?;
            return Ok((Addr(at), PageHandle(at)));
        }
        let _current = own.enter()?;
        let _mode = relax(self.driver)?;
        let mut at = 0;
        // SAFETY: the variable is ours.
        let code = unsafe { (self.driver.symbols.mem_alloc)(&raw mut at, bytes as usize) };
        match code {
            driver::SUCCESS => Ok((Addr(at), PageHandle(at))),
            code => Err(own.note(self.driver.error(&format!("cuMemAlloc of {bytes} B"), code))),
        }
    }

    fn set_access(&self, device: i32, access: Access) -> Result<(), BackendError> {
        self.may_ask()?;
        if device == self.device {
            return match access {
                Access::ReadWrite => Ok(()),
                _ => Err(BackendError::NotSupported(format!(
                    "device {device} is the pool's own, which always reads and writes its memory"
                ))),
            };
        }
        let other = self.driver.known_device(device)?;
        let Some(memory) = &self.memory else {
            if self.place != Place::Device && access == Access::ReadWrite {
                return Ok(()); // it is registered for all
            }
            return Err(BackendError::NotSupported(
                "other devices reach plain memory once the program has called cuCtxEnablePeerAccess; pools have an access \
                 list for mapped memory only"
                    .into(),
            ));
        };
        let reaches = || match self.place {
            Place::Device => self.driver.can_access(other, self.driver.device(self.device)?),
            Place::Host(_) => Ok(true),
        };
        if access != Access::None && !reaches()? {
            return Err(BackendError::NotSupported(format!(
                "device {device} cannot reach the memory of device {}",
                self.device
            )));
        }
        context::lock(memory).set_access(device, access)
    }

    fn access(&self, device: i32) -> Result<Access, BackendError> {
        driver::still_usable()?;
        self.driver.known_device(device)?;
        match &self.memory {
            Some(memory) => Ok(context::lock(memory).access(device)),
            None if device == self.device || self.place != Place::Device => Ok(Access::ReadWrite),
            None => Err(BackendError::NotSupported(
                "what other devices may do with plain memory is between the program and the driver".into(),
            )),
        }
    }

    fn watch_graph(&self, stream: StreamHandle, capture: CaptureId) -> Result<(), BackendError> {
        self.may_ask()?;
        self.gone.watch(self.driver, stream, capture)
    }

    fn graphs_gone(&self, each: &mut dyn FnMut(CaptureId)) {
        self.gone.take(each);
    }

    fn device_number(&self) -> Result<[u64; 2], BackendError> {
        driver::still_usable()?;
        self.driver.number(self.driver.device(self.device)?)
    }

    fn export(&self, page: PageHandle) -> Result<OwnedFd, BackendError> {
        share::export_page(&*self.may_ask()?, page.0)
    }

    fn import(&self, file: OwnedFd, _bytes: u64) -> Result<PageHandle, BackendError> {
        share::import_page(&*self.may_grow()?, &file).map(PageHandle)
    }

    fn export_event(&self, event: EventHandle) -> Result<(u64, [u64; 8]), BackendError> {
        share::export_event(&*self.may_ask()?, event).map(|words| (1, words))
    }

    fn event_file(&self, _event: EventHandle, _number: u64) -> Result<Option<Option<OwnedFd>>, BackendError> {
        Ok(Some(None)) // the driver's handle says it all
    }

    fn import_event(&self, _file: Option<OwnedFd>, driver: [u64; 8]) -> Result<EventHandle, BackendError> {
        share::import_event(&*self.may_ask()?, driver)
    }

    fn close(&self) {
        self.streams.close();
    }
}
