//! The statistics struct.

use super::args;
use super::guard::{InChild, guard};
use super::pool::serve;
use super::status::weir_status;
use super::types::weir_pool;
use crate::base::error::Error;
use crate::observe::stats::Stats;

/// Counters of a pool at one moment. It may grow at its end in later versions. Always
/// reserved_bytes = used_bytes + cached_bytes + free_bytes + pending_bytes + idle_bytes, and
/// allocations - frees = live blocks.
#[repr(C)]
pub struct weir_pool_stats {
    /// sizeof(weir_pool_stats), set by the caller.
    pub struct_size: usize,
    /// Bytes in live blocks, rounded up as they were allocated.
    pub used_bytes: u64,
    /// Highest used_bytes since creation or the last weir_pool_reset_peaks. Where several threads keep freed blocks it is
    /// the highest that was seen, which can miss a peak by a 256th, or by what those threads keep.
    pub used_bytes_peak: u64,
    /// Bytes of memory held.
    pub reserved_bytes: u64,
    /// Highest reserved_bytes since creation or the last weir_pool_reset_peaks.
    pub reserved_bytes_peak: u64,
    /// Free bytes inside slabs of small blocks, and in blocks that threads keep for their next requests.
    pub cached_bytes: u64,
    /// Free bytes that are ready for a stream.
    pub free_bytes: u64,
    /// Freed bytes that wait until another stream's work is complete.
    pub pending_bytes: u64,
    /// Bytes of memory that is in no usable address range just now.
    pub idle_bytes: u64,
    /// Bytes of the largest contiguous free extent; while calls are answered as in the round before, those that it had when that began.
    pub largest_free_bytes: u64,
    /// Blocks ever allocated.
    pub allocations: u64,
    /// Blocks ever freed.
    pub frees: u64,
    /// Requests that failed, but for those refused because of an argument.
    pub failures: u64,
    /// Requests served at once.
    pub cache_hits: u64,
    /// Requests for which memory had to be found.
    pub cache_misses: u64,
    /// Pages made usable at another address.
    pub pages_moved: u64,
    /// Pages created.
    pub page_creates: u64,
    /// Pages given back.
    pub page_releases: u64,
    /// Mappings made.
    pub page_maps: u64,
    /// Mappings removed.
    pub page_unmaps: u64,
    /// Events recorded, queried or waited for, and streams asked whether they have work.
    pub event_calls: u64,
    /// Calls of the driver or the operating system.
    pub driver_calls: u64,
    /// Times all free memory was given back, by request or before failing.
    pub squeezes: u64,
    /// 1 - largest_free_bytes / free_bytes; 0 if nothing is free.
    pub fragmentation: f64,
}

/// The size of the struct when it was first published; it has only grown since.
const FIRST_SIZE: usize = 192;
const _: () = assert!(FIRST_SIZE <= size_of::<weir_pool_stats>());

impl weir_pool_stats {
    fn new(struct_size: usize, stats: &Stats) -> weir_pool_stats {
        weir_pool_stats {
            struct_size,
            used_bytes: stats.used,
            used_bytes_peak: stats.used_peak,
            reserved_bytes: stats.reserved,
            reserved_bytes_peak: stats.reserved_peak,
            cached_bytes: stats.cached,
            free_bytes: stats.free,
            pending_bytes: stats.pending,
            idle_bytes: stats.idle,
            largest_free_bytes: stats.largest_free,
            allocations: stats.allocations,
            frees: stats.frees,
            failures: stats.failures,
            cache_hits: stats.hits,
            cache_misses: stats.misses,
            pages_moved: stats.pages_moved,
            page_creates: stats.page_creates,
            page_releases: stats.page_releases,
            page_maps: stats.maps,
            page_unmaps: stats.unmaps,
            event_calls: stats.event_calls,
            driver_calls: stats.driver_calls,
            squeezes: stats.squeezes,
            fragmentation: match stats.free {
                0 => 0.0,
                free => 1.0 - stats.largest_free as f64 / free as f64,
            },
        }
    }
}

/// Writes the counters of this moment to `stats`, whose struct_size the caller has set to
/// sizeof(weir_pool_stats). Cheap enough to call often; it takes the pool's locks. Where blocks are lent to other
/// processes it first has the pool's thread for these take back what they have freed.
///
/// Errors: the pool errors; WEIR_ERROR_NULL_POINTER; WEIR_ERROR_STRUCT_SIZE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_pool_get_stats(
    pool: *mut weir_pool,
    stats: *mut weir_pool_stats,
) -> weir_status {
    guard("weir_pool_get_stats", InChild::Refuse, || {
        let handle = args::handle(pool)?;
        if stats.is_null() {
            return Err(Error::NullPointer {
                what: "stats",
                hint: "pass the address of a weir_pool_stats",
            });
        }
        if !stats.is_aligned() {
            return Err(Error::InvalidArgument(
                "stats is not aligned: pass a weir_pool_stats".into(),
            ));
        }
        // SAFETY: not NULL, aligned, and every version of the struct begins with its size.
        let size = unsafe { (&raw const (*stats).struct_size).read() };
        let most = size_of::<weir_pool_stats>();
        if !(FIRST_SIZE..=most).contains(&size) {
            return Err(Error::StructSize {
                what: "weir_pool_stats",
                given: size,
                least: FIRST_SIZE,
                most,
            });
        }
        let now = weir_pool_stats::new(size, &serve(handle, |pool| pool.stats())?);
        // SAFETY: the caller has `size` bytes there, and `now` is at least that long.
        unsafe { std::ptr::copy_nonoverlapping((&raw const now).cast::<u8>(), stats.cast(), size) };
        Ok(())
    })
}

/// The peaks of the statistics begin anew at the current values.
///
/// Errors: the pool errors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_pool_reset_peaks(pool: *mut weir_pool) -> weir_status {
    guard("weir_pool_reset_peaks", InChild::Refuse, || {
        serve(args::handle(pool)?, |pool| pool.reset_peaks())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragmentation_is_what_the_largest_extent_leaves() {
        let of = |free, largest_free| {
            weir_pool_stats::new(
                0,
                &Stats {
                    free,
                    largest_free,
                    ..Stats::default()
                },
            )
            .fragmentation
        };
        assert_eq!((of(0, 0), of(8, 8), of(8, 2)), (0.0, 0.0, 0.75));
    }

    #[test]
    fn the_first_published_size_is_accepted_for_ever() {
        assert_eq!((FIRST_SIZE, size_of::<weir_pool_stats>()), (192, 192));
    }
}
