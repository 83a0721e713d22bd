//! The host backend's memory, seen through its public interface.

#![allow(unsafe_code)]

use std::slice;
use std::thread;
use std::time::{Duration, Instant};
use weir::backend::host::HostBackend;
use weir::backend::{Backend, BackendError};
use weir::base::units::{Addr, PageHandle};

const G: u64 = 2 << 20;

fn other<T: std::fmt::Debug>(answer: Result<T, BackendError>) -> String {
    match answer {
        Err(BackendError::Other(message)) => message,
        answer => panic!("expected Other, got {answer:?}"),
    }
}

fn words(at: Addr, bytes: u64) -> &'static mut [u64] {
    // SAFETY: the callers map the range first, and use it from one thread while it is mapped.
    unsafe { slice::from_raw_parts_mut(at.0 as *mut u64, bytes as usize / 8) }
}

fn offset(at: Addr, bytes: u64) -> Addr {
    Addr(at.0 + bytes)
}

#[test]
fn one_page_is_the_same_through_two_addresses() {
    let b = HostBackend::new().unwrap();
    let at = b.reserve(8 * G).unwrap();
    assert_eq!(at.0 % G, 0);
    let page = b.create(2 * G).unwrap();
    let (first, second) = (at, offset(at, 4 * G));
    b.map(first, page, 2 * G).unwrap();
    b.map(second, page, 2 * G).unwrap();
    assert!(
        words(second, 2 * G).iter().all(|&word| word == 0),
        "a page begins as zeros"
    );
    for (n, word) in words(first, 2 * G).iter_mut().enumerate() {
        *word = n as u64 ^ 0x5555;
    }
    assert!(
        words(second, 2 * G)
            .iter()
            .enumerate()
            .all(|(n, &word)| word == n as u64 ^ 0x5555)
    );
    words(second, 2 * G)[7] = 99;
    assert_eq!(words(first, 2 * G)[7], 99);
}

#[test]
fn a_page_moves_with_its_contents() {
    let b = HostBackend::new().unwrap();
    let (from, to) = (b.reserve(4 * G).unwrap(), b.reserve(4 * G).unwrap());
    let (a, c) = (b.create(G).unwrap(), b.create(G).unwrap());
    b.map(from, a, G).unwrap();
    b.map(offset(from, G), c, G).unwrap();
    words(from, G).fill(1);
    words(offset(from, G), G).fill(2);
    b.unmap(from, 2 * G).unwrap();
    // In the other order, elsewhere.
    b.map(to, c, G).unwrap();
    b.map(offset(to, G), a, G).unwrap();
    assert!(words(to, G).iter().all(|&word| word == 2));
    assert!(words(offset(to, G), G).iter().all(|&word| word == 1));
    // The old addresses are free for another page, which is not the old one.
    let fresh = b.create(G).unwrap();
    b.map(from, fresh, G).unwrap();
    assert!(words(from, G).iter().all(|&word| word == 0));
}

#[test]
fn adjacent_mappings_are_unmapped_in_one_call() {
    let b = HostBackend::new().unwrap();
    let at = b.reserve(16 * G).unwrap();
    let sizes = [G, 4 * G, 2 * G, G];
    let mut place = at;
    let pages: Vec<(PageHandle, u64)> = sizes
        .iter()
        .map(|&bytes| {
            let page = b.create(bytes).unwrap();
            b.map(place, page, bytes).unwrap();
            words(place, bytes)[0] = bytes;
            place = offset(place, bytes);
            (page, bytes)
        })
        .collect();
    b.unmap(at, 8 * G).unwrap();
    for (page, bytes) in pages {
        b.map(at, page, bytes).unwrap();
        assert_eq!(words(at, bytes)[0], bytes);
        b.unmap(at, bytes).unwrap();
        b.release(page, bytes).unwrap();
    }
    b.unreserve(at, 16 * G).unwrap();
}

#[test]
fn unmapped_addresses_fault() {
    let b = HostBackend::new().unwrap();
    let at = b.reserve(2 * G).unwrap();
    let page = b.create(G).unwrap();
    // write(2) reports an address that cannot be read as EFAULT.
    let mut pipe = [0; 2];
    // SAFETY: two places for two descriptors.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    // SAFETY: the kernel checks the address; nothing else is touched.
    let readable = |at: Addr| unsafe { libc::write(pipe[1], at.0 as *const libc::c_void, 1) } == 1;
    assert!(!readable(at));
    b.map(at, page, G).unwrap();
    assert!(readable(at) && !readable(offset(at, G)));
    b.unmap(at, G).unwrap();
    assert!(!readable(at));
    for fd in pipe {
        // SAFETY: opened above, closed once.
        unsafe { libc::close(fd) };
    }
}

#[test]
fn release_gives_the_memory_back() {
    let b = HostBackend::new().unwrap();
    let at = b.reserve(64 * G).unwrap();
    let (large, small) = (b.create(8 * G).unwrap(), b.create(G).unwrap());
    assert_eq!(b.resident_bytes(), Ok(0), "creating touches nothing");
    b.map(at, large, 8 * G).unwrap();
    b.map(offset(at, 8 * G), small, G).unwrap();
    assert_eq!(b.resident_bytes(), Ok(0), "mapping touches nothing");
    words(at, 8 * G).fill(1);
    words(offset(at, 8 * G), G).fill(2);
    assert_eq!(b.resident_bytes(), Ok(9 * G));
    b.unmap(at, 8 * G).unwrap();
    assert_eq!(
        b.resident_bytes(),
        Ok(9 * G),
        "an unmapped page keeps its contents"
    );
    b.release(large, 8 * G).unwrap();
    assert_eq!(b.resident_bytes(), Ok(G));
    assert!(words(offset(at, 8 * G), G).iter().all(|&word| word == 2));
}

#[test]
fn addresses_cost_nothing_and_memory_beyond_them_is_refused() {
    let b = HostBackend::new().unwrap();
    let begin = Instant::now();
    let at = b.reserve(256 << 30).unwrap();
    let last = offset(at, (256 << 30) - G);
    let page = b.create(G).unwrap();
    b.map(last, page, G).unwrap();
    words(last, G)[0] = 1;
    assert!(b.resident_bytes().unwrap() <= G);
    b.unmap(last, G).unwrap();
    b.unreserve(at, 256 << 30).unwrap();
    assert!(begin.elapsed() < Duration::from_secs(1));
    assert!(matches!(b.reserve(1 << 60), Err(BackendError::OutOfMemory(_))));
    assert!(matches!(
        b.reserve(u64::MAX - G + 1),
        Err(BackendError::OutOfMemory(_))
    ));
    assert!(matches!(
        b.create(u64::MAX - G + 1),
        Err(BackendError::OutOfMemory(_))
    ));
    b.create(1 << 40).unwrap();
    assert!(b.resident_bytes().unwrap() <= G);
}

#[test]
fn broken_preconditions_are_errors_and_change_nothing() {
    let b = HostBackend::new().unwrap();
    let at = b.reserve(8 * G).unwrap();
    let page = b.create(2 * G).unwrap();
    b.map(at, page, 2 * G).unwrap();
    words(at, 2 * G).fill(7);
    let outside = Addr(at.0 - G);
    assert!(other(b.map(at, page, 2 * G)).contains(&at.to_string()));
    assert!(other(b.map(offset(at, G), page, 2 * G)).contains(&at.to_string()));
    assert!(other(b.map(offset(at, 4 * G), page, G)).contains("4194304"));
    assert!(other(b.map(offset(at, 7 * G), page, 2 * G)).contains("not inside one reservation"));
    assert!(other(b.map(outside, page, 2 * G)).contains("not inside one reservation"));
    assert!(other(b.map(offset(at, 4 * G), PageHandle(12345), G)).contains("12345"));
    assert!(other(b.unmap(at, G)).contains("in part"));
    assert!(other(b.unmap(offset(at, G), G)).contains("in part"));
    assert!(other(b.unmap(offset(at, 4 * G), G)).contains("nothing is mapped"));
    assert!(other(b.release(page, 2 * G)).contains("mapped at 1 addresses"));
    assert!(other(b.release(page, G)).contains("4194304"));
    assert!(other(b.unreserve(at, 8 * G)).contains("still mapped"));
    assert!(other(b.unreserve(at, 4 * G)).contains(&at.to_string()));
    assert!(other(b.unreserve(offset(at, G), G)).contains("no reservation"));
    assert!(other(b.reserve(G + 1)).contains("2097153"));
    assert!(other(b.create(0)).contains("0 B"));
    assert!(words(at, 2 * G).iter().all(|&word| word == 7));
    b.unmap(at, 2 * G).unwrap();
    b.release(page, 2 * G).unwrap();
    assert!(other(b.release(page, 2 * G)).contains("does not exist"));
    b.unreserve(at, 8 * G).unwrap();
}

/// The areas of this process whose line has `text` in it, as (start, end).
fn areas(text: &str) -> Vec<(u64, u64)> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let range = |line: &str| {
        let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        (
            u64::from_str_radix(start, 16).unwrap(),
            u64::from_str_radix(end, 16).unwrap(),
        )
    };
    maps.lines()
        .filter(|line| line.contains(text))
        .map(range)
        .collect()
}

#[test]
fn drop_gives_everything_back() {
    let b = HostBackend::new().unwrap();
    let at = b.reserve(1 << 40).unwrap();
    let page = b.create(G).unwrap();
    // In the middle of a terabyte: what other tests map after the drop does not come there by chance.
    let middle = offset(at, 1 << 39);
    b.map(middle, page, G).unwrap();
    words(middle, G).fill(1);
    let there = |&(start, end): &(u64, u64)| start <= middle.0 && end > middle.0;
    assert!(areas("memfd:weir").iter().any(there));
    drop(b);
    assert!(!areas("").iter().any(there));
}

#[test]
fn mappings_of_all_backends_share_the_limit() {
    let (a, b) = (HostBackend::new().unwrap(), HostBackend::new().unwrap());
    let most = a.mapping_limit();
    let areas: u64 = std::fs::read_to_string("/proc/sys/vm/max_map_count")
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    assert!(most >= 1 && most * 2 < areas, "{most} of {areas}");
    let at = a.reserve(1024 * G).unwrap();
    let page = a.create(G).unwrap();
    for n in 0..512 {
        a.map(offset(at, 2 * n * G), page, G).unwrap();
    }
    // Other tests map a few pages beside this one.
    let left = b.mapping_limit();
    assert!(left <= most - 400, "{left} of {most}");
    assert!(a.mapping_limit() > left + 400);
    drop(a);
    assert!(b.mapping_limit() > left + 400);
}

#[test]
fn threads_share_one_backend() {
    let b = HostBackend::new().unwrap();
    thread::scope(|scope| {
        for id in 0..8u64 {
            let b = &b;
            scope.spawn(move || {
                for round in 0..50 {
                    let at = b.reserve(4 * G).unwrap();
                    let page = b.create(G).unwrap();
                    b.map(at, page, G).unwrap();
                    b.map(offset(at, 2 * G), page, G).unwrap();
                    words(at, G)[round] = id + 1;
                    assert_eq!(words(offset(at, 2 * G), G)[round], id + 1);
                    b.unmap(at, G).unwrap();
                    b.unmap(offset(at, 2 * G), G).unwrap();
                    b.release(page, G).unwrap();
                    b.unreserve(at, 4 * G).unwrap();
                }
            });
        }
    });
    assert_eq!(b.resident_bytes(), Ok(0));
}
