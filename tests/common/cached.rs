//! A pool on the counting backend, and calls by way of a thread's cache.

use weir::backend::counting::Counting;
use weir::base::error::Error;
use weir::base::units::{Addr, StreamHandle};
use weir::config::Config;
use weir::pool::{Cache, Pool, SMALL_MAX, Spot, ThreadCache};

pub const STREAM: StreamHandle = StreamHandle(1);

/// One in whose caches calls are served: its first calls were not the cache's, and so the program's are not recorded.
pub fn pool(config: Config) -> Pool {
    let pool = Pool::new(config, Counting::new(true)).expect("a pool");
    let at = pool.alloc(1, 0, STREAM).expect("a block");
    pool.free(at, STREAM).expect("a live block");
    pool
}

/// The calling thread's.
pub fn cache(pool: &Pool) -> ThreadCache {
    pool.open_cache(STREAM).expect("a cache")
}

pub fn alloc(pool: &Pool, cache: &ThreadCache, bytes: u64) -> Result<Addr, Error> {
    match cache.alloc(bytes, 0) {
        Some(at) => Ok(at),
        None => pool.alloc_beside(Some(cache), bytes, 0, STREAM),
    }
}

pub fn free(pool: &Pool, cache: &ThreadCache, at: Addr) -> Result<u64, Error> {
    match cache.free(at) {
        Some(bytes) => Ok(bytes),
        None => pool.free_beside(Some(cache), at, STREAM),
    }
}

/// A block for a request, as the exported function takes it.
pub fn take_quick(cache: &Cache, bytes: u64) -> Option<u64> {
    let inside = cache.enter_quick().ok()?;
    match bytes {
        _ if bytes <= SMALL_MAX => inside.take_small(bytes),
        _ if !inside.is_for_long(bytes) => inside.take_short(bytes),
        _ => inside.take_long(bytes),
    }
}

/// Keeps a block that is freed, as the exported function does.
pub fn keep_quick(cache: &Cache, at: Addr) -> Option<u64> {
    let inside = cache.enter_quick().ok()?;
    let spot = Spot::of(at.0, cache.whole())?;
    let look = spot.look();
    match inside.class(look) {
        Some(class) => inside.keep_small(at.0, class, spot),
        None if !inside.is_own(look) => inside.keep_any(at.0, look),
        None if inside.is_long(look) => inside.keep_long(at.0, look),
        None if inside.has_latest() => inside.keep_next(at.0, look),
        None => inside.keep_latest(at.0, look),
    }
}

/// The block that the same call of the round before got, as the exported function finds out.
pub fn replay_alloc_quick(cache: &Cache, bytes: u64) -> Option<u64> {
    cache.enter_quick().err()?.replay_alloc(bytes)
}

/// The same of a free: the block's bytes.
pub fn replay_free_quick(cache: &Cache, at: Addr) -> Option<u64> {
    cache.enter_quick().err()?.replay_free(at.0)
}
