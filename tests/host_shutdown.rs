//! `host::shutdown`. Alone in its process: it ends every stream there is. The parts run one after another.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use weir::backend::host::{HostBackend, events, shutdown, streams};
use weir::backend::{Backend, BackendError, Event};
use weir::base::units::StreamHandle;

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// A thread that was joined may be listed for a moment more.
fn threads_become(count: usize) {
    let end = Instant::now() + Duration::from_secs(5);
    while threads() > count {
        assert!(Instant::now() < end, "{} threads, not {count}", threads());
        thread::yield_now();
    }
}

fn add_later(stream: StreamHandle, count: &Arc<AtomicU64>) {
    let count = Arc::clone(count);
    let work = move || {
        thread::sleep(Duration::from_millis(5));
        count.fetch_add(1, Ordering::SeqCst);
    };
    streams::enqueue(stream, Box::new(work)).unwrap();
}

fn once(before: usize) {
    let b = HostBackend::new().unwrap();
    let count = Arc::new(AtomicU64::new(0));
    let all: Vec<StreamHandle> = (0..4).map(|_| streams::create().unwrap()).collect();
    let event = events::create().unwrap();
    for &stream in &all {
        (0..3).for_each(|_| add_later(stream, &count));
    }
    streams::destroy(all[0]).unwrap();
    events::record(event, all[1]).unwrap();
    events::stream_wait(all[2], event).unwrap();
    add_later(all[2], &count);
    let (later, inner) = (all[3], Arc::clone(&count));
    streams::enqueue(all[1], Box::new(move || add_later(later, &inner))).unwrap();
    let token = b.record(all[3]).unwrap();
    assert_ne!(token, Event::COMPLETE);
    assert!(threads() > before);
    shutdown().unwrap();
    assert_eq!(
        count.load(Ordering::SeqCst),
        14,
        "work queued, also by queued work, runs first"
    );
    threads_become(before);
    assert_eq!(b.query(token), Ok(true));
    b.forget(token);
    for stream in all {
        assert!(!streams::is_stream(stream));
        assert!(matches!(
            streams::synchronize(stream),
            Err(BackendError::InvalidStream(_))
        ));
    }
    assert!(!events::is_event(event));
}

fn requeue(stream: StreamHandle) {
    let _ = streams::enqueue(stream, Box::new(move || requeue(stream)));
}

#[test]
fn ends_everything_and_begins_anew() {
    let before = threads();
    shutdown().unwrap();
    once(before);
    shutdown().unwrap();
    once(before);
    shutdown().unwrap();
    shutdown().unwrap();

    // Work that queues itself for ever is stopped.
    let stream = streams::create().unwrap();
    requeue(stream);
    shutdown().unwrap();
    threads_become(before);

    // Threads of destroyed streams are joined as streams come and go, not at the end alone.
    for _ in 0..200 {
        let stream = streams::create().unwrap();
        streams::synchronize(stream).unwrap();
        streams::destroy(stream).unwrap();
    }
    thread::sleep(Duration::from_millis(50));
    let stream = streams::create().unwrap();
    threads_become(before + 2);
    streams::destroy(stream).unwrap();
    assert!(!streams::is_stream(stream));
    assert_eq!(
        streams::create(),
        Ok(stream),
        "the handle freed last is used first"
    );
    shutdown().unwrap();
}
