//! What a process may still do after `fork`, and after the backend was "unloaded" at exit. Each part runs
//! in a process of its own: this test program again, with `WEIR_TEST_ROLE` set.

#![allow(unsafe_code)]

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use weir::backend::host::{HostBackend, events, shutdown, streams};
use weir::backend::{Backend, BackendError, Event, process};
use weir::base::units::{Addr, PageHandle, StreamHandle};

const G: u64 = 2 << 20;

fn run(role: &str) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "role", "--nocapture"])
        .env("WEIR_TEST_ROLE", role)
        .env("WEIR_TEST_HOST_UNLOAD", "1")
        .output()
        .unwrap()
}

static BACKEND: OnceLock<Arc<HostBackend>> = OnceLock::new();
static CALL: OnceLock<String> = OnceLock::new();

fn call(b: &HostBackend, name: &str) {
    let stream = StreamHandle(0);
    match name {
        "reserve" => drop(b.reserve(G)),
        "unreserve" => drop(b.unreserve(Addr(G), G)),
        "create" => drop(b.create(G)),
        "release" => drop(b.release(PageHandle(G), G)),
        "map" => drop(b.map(Addr(G), PageHandle(G), G)),
        "unmap" => drop(b.unmap(Addr(G), G)),
        "timeline" => drop(b.timeline(stream)),
        "record" => drop(b.record(stream)),
        "query" => drop(b.query(Event::COMPLETE)),
        "wait" => drop(b.wait(stream, Event::COMPLETE)),
        "synchronize" => drop(b.synchronize(Event::COMPLETE)),
        "forget" => b.forget(Event(1)),
        "synchronize_all" => drop(b.synchronize_all()),
        "none" => {
            // What may still be done: ask, end the streams, drop.
            assert!(!b.usable());
            assert_eq!(streams::create(), Err(BackendError::Unloaded));
            assert_eq!(events::create(), Err(BackendError::Unloaded));
            assert!(HostBackend::new().is_err());
            shutdown().unwrap();
            eprintln!("reached the end");
        }
        name => panic!("{name}"),
    }
}

extern "C" fn after_unload() {
    call(BACKEND.get().unwrap(), CALL.get().unwrap());
}

/// The other processes' code; nothing in the process that the test runner started.
#[test]
fn role() {
    let Ok(role) = std::env::var("WEIR_TEST_ROLE") else {
        return;
    };
    CALL.set(role).unwrap();
    // SAFETY: a plain function. Registered before the first use, so it runs after the unloading.
    assert_eq!(unsafe { libc::atexit(after_unload) }, 0);
    let b = HostBackend::new().unwrap();
    let (at, page) = (b.reserve(4 * G).unwrap(), b.create(G).unwrap());
    b.map(at, page, G).unwrap();
    streams::create().unwrap();
    assert!(b.usable());
    BACKEND.set(b).unwrap();
}

#[test]
fn a_call_after_unload_aborts_and_names_itself() {
    for name in [
        "reserve",
        "unreserve",
        "create",
        "release",
        "map",
        "unmap",
        "timeline",
        "record",
        "query",
        "wait",
        "synchronize",
        "forget",
        "synchronize_all",
    ] {
        let output = run(name);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{name}: {text}");
        assert!(
            text.contains(&format!("{name} called after the backend was unloaded")),
            "{text}"
        );
    }
    let output = run("none");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && text.contains("reached the end"),
        "{text}"
    );
}

/// The child's answer: 0, or the number of the check that failed.
fn in_child(b: Arc<HostBackend>, stream: StreamHandle, place: *mut u64) -> i32 {
    let unloaded = Err(BackendError::Unloaded);
    let checks = [
        process::forked(),
        !b.usable(),
        b.reserve(G) == Err(BackendError::Unloaded),
        b.unmap(Addr(place as u64), G) == unloaded,
        b.record(stream) == Err(BackendError::Unloaded),
        b.synchronize_all() == unloaded,
        streams::synchronize(stream) == unloaded,
        streams::enqueue(stream, Box::new(|| {})) == unloaded,
        streams::destroy(stream) == unloaded,
        !streams::is_stream(stream),
        events::create().is_err(),
        HostBackend::new().is_err(),
        shutdown() == unloaded,
    ];
    if let Some(failed) = checks.iter().position(|&held| !held) {
        return failed as i32 + 1;
    }
    b.forget(Event(1));
    drop(b);
    // The mapping is left alone by the drop.
    // SAFETY: mapped by the parent before the fork.
    if unsafe { place.read_volatile() } == 42 {
        0
    } else {
        100
    }
}

#[test]
fn a_forked_child_makes_no_call() {
    let b = HostBackend::new().unwrap();
    let (at, page) = (b.reserve(4 * G).unwrap(), b.create(G).unwrap());
    b.map(at, page, G).unwrap();
    let place = at.0 as *mut u64;
    // SAFETY: mapped above, and used by this thread alone.
    unsafe { place.write_volatile(42) };
    let stream = streams::create().unwrap();
    // Work in flight: the child has no worker that could ever finish it.
    streams::enqueue(
        stream,
        Box::new(|| std::thread::sleep(std::time::Duration::from_millis(200))),
    )
    .unwrap();
    assert!(!process::forked());
    // SAFETY: the child takes none of weir's locks, and allocates little, which glibc allows after fork.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the child at once; an alarm ends it if it blocks.
        unsafe {
            libc::alarm(10);
            libc::_exit(in_child(b, stream, place));
        }
    }
    assert!(child > 0);
    let mut status = 0;
    // SAFETY: a child of ours, and a place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "status {status:#x}");
    assert_eq!(libc::WEXITSTATUS(status), 0, "the check of that number failed");
    // The parent goes on as if nothing had been.
    assert!(b.usable() && !process::forked());
    streams::synchronize(stream).unwrap();
    b.unmap(at, G).unwrap();
    streams::destroy(stream).unwrap();
}

/// Descriptors of this process that hold a lock on their file.
fn locks() -> usize {
    let infos = std::fs::read_dir("/proc/self/fdinfo").unwrap();
    let texts = infos.filter_map(|info| std::fs::read_to_string(info.unwrap().path()).ok());
    texts.filter(|text| text.contains("OFDLCK")).count()
}

/// A child that kept one would keep the event for as long as it lives.
#[test]
fn a_forked_child_has_no_claim_on_an_event_whenever_it_forks() {
    const FORKS: u32 = 400;
    let b = HostBackend::new().unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let claiming = {
        let over = over.clone();
        std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let event = events::create().unwrap();
                b.export_event(event).unwrap();
                // by this it is claimed, and by the other let go of
                events::record(event, StreamHandle(0)).unwrap();
                events::destroy(event).unwrap();
            }
        })
    };
    for _ in 0..FORKS {
        // SAFETY: the child takes none of weir's locks, and allocates little, which glibc allows after fork.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // what the parent had just opened it locks soon
            std::thread::sleep(Duration::from_millis(1));
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(locks() as i32) };
        }
        let mut status = 0;
        // SAFETY: a child of ours, and a place for its status.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child has locks");
    }
    over.store(true, Ordering::Relaxed);
    claiming.join().unwrap();
    assert_eq!(locks(), 0);
}
