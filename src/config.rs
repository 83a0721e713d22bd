//! Options of a pool, checked once when it is created.

pub use crate::alloc::order::Reuse;
use std::sync::Arc;

/// The greatest `slack`.
pub const MOST_SLACK: f64 = 16.0;

/// Where a pool's memory lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// Memory of a GPU.
    Device,
    /// Page-locked host memory.
    Pinned,
    /// Plain host memory.
    Host,
}

/// How device memory is come by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceMemory {
    /// Pages that are mapped where they are needed, if the device and its driver can.
    Mapped,
    /// Segments of the driver's plain allocator.
    Plain,
}

/// Called without any lock when a request is about to fail, with the bytes asked for; true: try once more.
pub type OomCallback = Arc<dyn Fn(u64) -> bool + Send + Sync>;

/// Options of a pool.
#[derive(Clone)]
pub struct Config {
    /// Where the memory lives.
    pub memory: MemoryKind,
    /// The device's ordinal, also of the one that pinned memory is for; ignored for host memory.
    pub device: i32,
    /// Physical bytes never exceeded; 0: no limit.
    pub max_bytes: u64,
    /// Free physical memory above this is given back at frees and synchronises; `u64::MAX`: kept.
    pub release_threshold: u64,
    /// Physical bytes created with the pool.
    pub initial_bytes: u64,
    /// A worker keeps so many free bytes mapped ahead of use while the pool grows; 0: none.
    pub growth_ahead: u64,
    /// Reuse across streams.
    pub reuse: Reuse,
    /// The pool grows rather than moves pages while it holds at most `(1 + slack)` times the peak in use.
    pub slack: f64,
    /// How device memory is come by.
    pub device_memory: DeviceMemory,
    /// The host's NUMA node that pinned memory comes from; None: the one nearest to the device.
    pub numa_node: Option<i32>,
    /// Network cards can reach the memory.
    pub gpu_direct_rdma: bool,
    /// A mask of CU_MEM_HANDLE_TYPE_*: how the memory can be shared with other processes.
    pub ipc_handle_types: u32,
    /// Every block lies in one physical page, for those who register blocks by it (NCCL, RDMA); nothing is moved.
    pub blocks_in_one_page: bool,
    /// Threads keep what they freed, for their next requests.
    pub thread_caches: bool,
    /// The program tells weir when a stream is destroyed or captured, so that it need not be asked each time.
    pub declared_streams: bool,
    /// Shown in reports and messages.
    pub name: String,
    /// Asked before a request fails.
    pub on_oom: Option<OomCallback>,
}

/// The slack if nothing is said.
pub const SLACK: f64 = 0.025;

impl Default for Config {
    fn default() -> Self {
        Config {
            memory: MemoryKind::Device,
            device: 0,
            max_bytes: 0,
            release_threshold: u64::MAX,
            initial_bytes: 0,
            growth_ahead: 0,
            reuse: Reuse {
                event_dependencies: true,
                opportunistic: true,
                internal_dependencies: true,
            },
            slack: SLACK,
            device_memory: DeviceMemory::Mapped,
            numa_node: None,
            gpu_direct_rdma: false,
            ipc_handle_types: 0,
            blocks_in_one_page: false,
            thread_caches: true,
            declared_streams: false,
            name: String::new(),
            on_oom: None,
        }
    }
}
