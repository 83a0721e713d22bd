//! The host backend's streams and events, seen through its public interface.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use weir::backend::host::{HostBackend, events, streams};
use weir::backend::{Backend, BackendError, Event};
use weir::base::units::{EventHandle, StreamHandle, StreamId};

fn other<T: std::fmt::Debug>(answer: Result<T, BackendError>) -> String {
    match answer {
        Err(BackendError::Other(message)) => message,
        answer => panic!("expected Other, got {answer:?}"),
    }
}

/// A stream that stands still until the sender is used or dropped.
fn blocked() -> (StreamHandle, Sender<()>) {
    let stream = streams::create().unwrap();
    let (sender, receiver) = channel::<()>();
    streams::enqueue(stream, Box::new(move || receiver.recv().unwrap_or(()))).unwrap();
    (stream, sender)
}

fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < end, "never: {what}");
        thread::yield_now();
    }
}

fn flag() -> (Arc<AtomicBool>, Box<dyn FnOnce() + Send>) {
    let flag = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&flag);
    (flag, Box::new(move || set.store(true, Ordering::SeqCst)))
}

// Streams.

#[test]
fn a_stream_runs_its_work_in_order() {
    let stream = streams::create().unwrap();
    let log = Arc::new(Mutex::new(Vec::new()));
    for n in 0..100 {
        let log = Arc::clone(&log);
        let work = move || {
            if n % 10 == 0 {
                thread::sleep(Duration::from_millis(2));
            }
            log.lock().unwrap().push(n);
        };
        streams::enqueue(stream, Box::new(work)).unwrap();
    }
    streams::synchronize(stream).unwrap();
    assert_eq!(*log.lock().unwrap(), (0..100).collect::<Vec<_>>());
    streams::destroy(stream).unwrap();
}

#[test]
fn enqueue_does_not_wait_and_synchronize_does() {
    let (stream, go) = blocked();
    let (done, set) = flag();
    streams::enqueue(stream, set).unwrap();
    assert!(!done.load(Ordering::SeqCst));
    let waiter = thread::spawn(move || streams::synchronize(stream));
    thread::sleep(Duration::from_millis(20));
    assert!(!waiter.is_finished() && !done.load(Ordering::SeqCst));
    drop(go);
    waiter.join().unwrap().unwrap();
    assert!(done.load(Ordering::SeqCst));
    streams::destroy(stream).unwrap();
}

#[test]
fn a_destroyed_stream_finishes_its_work() {
    let b = HostBackend::new().unwrap();
    let (stream, go) = blocked();
    let (done, set) = flag();
    streams::enqueue(stream, set).unwrap();
    let event = b.record(stream).unwrap();
    streams::destroy(stream).unwrap();
    assert!(!done.load(Ordering::SeqCst));
    assert_eq!(b.query(event), Ok(false), "an event survives its stream");
    drop(go);
    b.synchronize(event).unwrap();
    assert!(done.load(Ordering::SeqCst));
    b.forget(event);
}

#[test]
fn unknown_streams_are_named() {
    let dead = StreamHandle(0x1234_5678);
    for answer in [
        streams::destroy(dead),
        streams::synchronize(dead),
        streams::enqueue(dead, Box::new(|| {})),
    ] {
        match answer {
            Err(BackendError::InvalidStream(message)) => assert!(message.contains("0x12345678"), "{message}"),
            answer => panic!("{answer:?}"),
        }
    }
    assert!(!streams::is_stream(dead));
}

#[test]
fn other_values_are_streams_with_nothing_in_flight() {
    let b = HostBackend::new().unwrap();
    let real = streams::create().unwrap();
    for value in [0, 1, 2, 0x7fff_0000_1000, usize::MAX] {
        let stream = StreamHandle(value);
        assert_eq!(b.record(stream), Ok(Event::COMPLETE));
        assert_eq!(b.timeline(stream), b.timeline(stream));
        assert_ne!(b.timeline(stream), b.timeline(real));
        b.wait(stream, Event::COMPLETE).unwrap();
    }
    assert_ne!(b.timeline(StreamHandle(1)), b.timeline(StreamHandle(2)));
    assert_eq!(b.query(Event::COMPLETE), Ok(true));
    streams::destroy(real).unwrap();
}

#[test]
fn handles_are_recycled_and_ids_are_not() {
    let b = HostBackend::new().unwrap();
    let mut seen: Vec<(StreamHandle, StreamId)> = Vec::new();
    // Other tests create streams at the same time and may take a handle first.
    for _ in 0..1000 {
        let stream = streams::create().unwrap();
        assert!(streams::is_stream(stream));
        let id = b.timeline(stream).unwrap().stream;
        assert!(seen.iter().all(|&(_, old)| old != id), "an id was used twice");
        let recycled = seen.iter().any(|&(old, _)| old == stream);
        seen.push((stream, id));
        streams::destroy(stream).unwrap();
        if recycled {
            return;
        }
    }
    panic!("no handle was ever recycled");
}

#[test]
fn each_of_many_streams_is_known_until_it_is_destroyed() {
    let b = HostBackend::new().unwrap();
    let id = |stream| b.timeline(stream).unwrap().stream;
    let many: Vec<StreamHandle> = (0..300).map(|_| streams::create().unwrap()).collect();
    let ids: HashSet<StreamId> = many.iter().map(|&stream| id(stream)).collect();
    assert_eq!(ids.len(), 300);
    for stream in many {
        assert!(streams::is_stream(stream));
        assert!(!b.is_inert(id(stream)));
        let before = id(stream);
        streams::destroy(stream).unwrap();
        // another test's may have the handle by now
        assert_ne!(id(stream), before);
    }
}

#[test]
fn a_worker_may_not_wait_for_itself() {
    let b = HostBackend::new().unwrap();
    let stream = streams::create().unwrap();
    let event = events::create().unwrap();
    let (sender, answers): (Sender<Result<(), BackendError>>, Receiver<_>) = channel();
    let work = move || {
        // Work behind this function, so that an event recorded now is not complete.
        streams::enqueue(stream, Box::new(|| {})).unwrap();
        events::record(event, stream).unwrap();
        let token = b.record(stream).unwrap();
        for answer in [
            streams::synchronize(stream),
            streams::synchronize_all(),
            b.synchronize_all(),
            events::synchronize(event),
            b.synchronize(token),
            b.wait(StreamHandle(0), token),
            weir::backend::host::shutdown(),
        ] {
            sender.send(answer).unwrap();
        }
        b.forget(token);
    };
    streams::enqueue(stream, Box::new(work)).unwrap();
    for _ in 0..7 {
        let message = other(answers.recv_timeout(Duration::from_secs(20)).expect("a deadlock"));
        assert!(message.contains("may not"), "{message}");
    }
    streams::synchronize(stream).unwrap();
    events::destroy(event).unwrap();
    streams::destroy(stream).unwrap();
}

#[test]
fn a_function_may_use_streams() {
    let (a, b) = (streams::create().unwrap(), streams::create().unwrap());
    let (done, set) = flag();
    let work = move || {
        streams::enqueue(b, Box::new(move || streams::enqueue(a, set).unwrap())).unwrap();
        streams::synchronize(b).unwrap();
        streams::destroy(b).unwrap();
    };
    streams::enqueue(a, Box::new(work)).unwrap();
    streams::synchronize(a).unwrap();
    streams::synchronize(a).unwrap();
    assert!(done.load(Ordering::SeqCst));
    streams::destroy(a).unwrap();
}

#[test]
fn a_panic_does_not_stop_a_stream() {
    let stream = streams::create().unwrap();
    let (done, set) = flag();
    streams::enqueue(stream, Box::new(|| panic!("on purpose"))).unwrap();
    streams::enqueue(stream, set).unwrap();
    streams::synchronize(stream).unwrap();
    assert!(done.load(Ordering::SeqCst));
    streams::destroy(stream).unwrap();
}

#[test]
fn synchronize_all_covers_live_and_destroyed_streams() {
    let count = Arc::new(AtomicU64::new(0));
    let all: Vec<StreamHandle> = (0..8).map(|_| streams::create().unwrap()).collect();
    for &stream in &all {
        for _ in 0..5 {
            let count = Arc::clone(&count);
            let work = move || {
                thread::sleep(Duration::from_millis(2));
                count.fetch_add(1, Ordering::SeqCst);
            };
            streams::enqueue(stream, Box::new(work)).unwrap();
        }
    }
    all.iter()
        .step_by(2)
        .for_each(|&stream| streams::destroy(stream).unwrap());
    HostBackend::new().unwrap().synchronize_all().unwrap();
    assert_eq!(count.load(Ordering::SeqCst), 40);
    all.iter()
        .skip(1)
        .step_by(2)
        .for_each(|&stream| streams::destroy(stream).unwrap());
}

/// Who queued what, in the order in which it ran.
type Log = Mutex<Vec<(u64, u64)>>;

#[test]
fn many_threads_enqueue() {
    let all: Vec<StreamHandle> = (0..4).map(|_| streams::create().unwrap()).collect();
    let logs: Arc<Vec<Log>> = Arc::new((0..4).map(|_| Log::default()).collect());
    thread::scope(|scope| {
        for id in 0..8 {
            let (all, logs) = (&all, &logs);
            scope.spawn(move || {
                for n in 0..1000 {
                    for (which, &stream) in all.iter().enumerate() {
                        let logs = Arc::clone(logs);
                        let work = move || logs[which].lock().unwrap().push((id, n));
                        streams::enqueue(stream, Box::new(work)).unwrap();
                    }
                    if n % 100 == 0 {
                        streams::synchronize(all[id as usize % 4]).unwrap();
                    }
                }
            });
        }
    });
    for (stream, log) in all.iter().zip(logs.iter()) {
        streams::synchronize(*stream).unwrap();
        let log = log.lock().unwrap();
        assert_eq!(log.len(), 8000);
        for id in 0..8 {
            assert!(
                log.iter()
                    .filter(|entry| entry.0 == id)
                    .map(|entry| entry.1)
                    .eq(0..1000)
            );
        }
        streams::destroy(*stream).unwrap();
    }
}

// The pool's events.

#[test]
fn a_wait_orders_later_work_behind_the_event() {
    let b = HostBackend::new().unwrap();
    let (first, go) = blocked();
    let second = streams::create().unwrap();
    let (before, set_before) = flag();
    let (after, set_after) = flag();
    let event = b.record(first).unwrap();
    assert_eq!(b.query(event), Ok(false));
    streams::enqueue(second, set_before).unwrap();
    b.wait(second, event).unwrap();
    b.forget(event);
    streams::enqueue(second, set_after).unwrap();
    eventually("work before the wait runs", || before.load(Ordering::SeqCst));
    thread::sleep(Duration::from_millis(20));
    assert!(
        !after.load(Ordering::SeqCst),
        "work behind the wait ran before the event"
    );
    drop(go);
    streams::synchronize(second).unwrap();
    assert!(after.load(Ordering::SeqCst));
    // On the stream itself a wait is no work at all, and on one without a queue it blocks the caller.
    b.wait(first, event).unwrap_err();
    streams::destroy(first).unwrap();
    streams::destroy(second).unwrap();
}

#[test]
fn a_wait_on_a_stream_without_a_queue_blocks_the_caller() {
    let b = HostBackend::new().unwrap();
    let (stream, go) = blocked();
    let event = b.record(stream).unwrap();
    b.wait(stream, event).unwrap();
    let waiter = {
        let b = Arc::clone(&b);
        thread::spawn(move || b.wait(StreamHandle(0), event))
    };
    thread::sleep(Duration::from_millis(20));
    assert!(!waiter.is_finished());
    drop(go);
    waiter.join().unwrap().unwrap();
    assert_eq!(b.query(event), Ok(true));
    b.forget(event);
    streams::destroy(stream).unwrap();
}

#[test]
fn an_event_covers_what_was_queued_before_it_only() {
    let b = HostBackend::new().unwrap();
    let (stream, go) = blocked();
    let event = b.record(stream).unwrap();
    let (sender, receiver) = channel::<()>();
    streams::enqueue(stream, Box::new(move || receiver.recv().unwrap_or(()))).unwrap();
    let later = b.record(stream).unwrap();
    assert_ne!(event, later);
    drop(go);
    b.synchronize(event).unwrap();
    assert_eq!((b.query(event), b.query(later)), (Ok(true), Ok(false)));
    drop(sender);
    b.synchronize(later).unwrap();
    assert_eq!(b.record(stream), Ok(Event::COMPLETE), "nothing is in flight");
    b.forget(event);
    b.forget(later);
    assert!(other(b.query(later)).contains("was forgotten"));
    assert!(other(b.query(Event(u64::MAX))).contains("never recorded"));
    streams::destroy(stream).unwrap();
}

// The program's events.

#[test]
fn a_recorded_event_follows_its_stream() {
    let event = events::create().unwrap();
    assert!(events::is_event(event));
    assert_eq!(events::query(event), Ok(true), "never recorded");
    events::synchronize(event).unwrap();
    let (stream, go) = blocked();
    events::record(event, stream).unwrap();
    assert_eq!(events::query(event), Ok(false));
    drop(go);
    events::synchronize(event).unwrap();
    assert_eq!(events::query(event), Ok(true));
    // Recorded where nothing is in flight.
    let (again, go) = blocked();
    events::record(event, again).unwrap();
    events::record(event, StreamHandle(0)).unwrap();
    assert_eq!(events::query(event), Ok(true));
    drop(go);
    events::destroy(event).unwrap();
    assert!(!events::is_event(event));
    assert!(other(events::query(event)).contains("not a live host event"));
    assert!(other(events::destroy(EventHandle(3))).contains("0x3"));
    streams::destroy(stream).unwrap();
    streams::destroy(again).unwrap();
}

#[test]
fn a_wait_keeps_what_was_recorded_when_it_was_called() {
    let event = events::create().unwrap();
    let (first, go_first) = blocked();
    let (second, go_second) = blocked();
    let waiting = streams::create().unwrap();
    let (done, set) = flag();
    events::record(event, first).unwrap();
    events::stream_wait(waiting, event).unwrap();
    streams::enqueue(waiting, set).unwrap();
    // Recording again, and destroying, changes nothing for the wait.
    events::record(event, second).unwrap();
    assert_eq!(events::query(event), Ok(false));
    thread::sleep(Duration::from_millis(20));
    assert!(!done.load(Ordering::SeqCst));
    drop(go_first);
    streams::synchronize(waiting).unwrap();
    assert!(done.load(Ordering::SeqCst));
    assert_eq!(events::query(event), Ok(false), "the second recording counts now");
    events::destroy(event).unwrap();
    drop(go_second);
    for stream in [first, second, waiting] {
        streams::destroy(stream).unwrap();
    }
}

/// The same event, as another process has it.
fn elsewhere(event: EventHandle) -> EventHandle {
    let b = HostBackend::shared().unwrap();
    let (number, words) = b.export_event(event).unwrap();
    let file = b.event_file(event, number).unwrap().expect("it lives");
    b.import_event(file, words).unwrap()
}

#[test]
fn what_was_recorded_here_is_waited_for_whoever_records_since() {
    let event = events::create().unwrap();
    let ((first, go_first), (second, go_second)) = (blocked(), blocked());
    let waiting = streams::create().unwrap();
    let (done, set) = flag();
    events::record(event, first).unwrap();
    let theirs = elsewhere(event);
    assert_eq!(
        events::query(theirs),
        Ok(true),
        "what was recorded before is not told"
    );
    events::record(theirs, StreamHandle(0)).unwrap();
    assert_eq!(events::query(theirs), Ok(true));
    assert_eq!(events::query(event), Ok(false));
    // one that is refused changes nothing
    assert!(other(events::record(event, StreamHandle(0))).contains("another process records"));
    assert_eq!(events::query(event), Ok(false));
    // what the other recorded is waited for, too
    events::record(theirs, second).unwrap();
    events::stream_wait(waiting, event).unwrap();
    streams::enqueue(waiting, set).unwrap();
    let waiter = thread::spawn(move || events::synchronize(event));
    let waits = || !waiter.is_finished() && !done.load(Ordering::SeqCst);
    thread::sleep(Duration::from_millis(20));
    assert!(waits());
    drop(go_first);
    thread::sleep(Duration::from_millis(20));
    assert!(waits() && events::query(event) == Ok(false));
    drop(go_second);
    waiter.join().unwrap().unwrap();
    streams::synchronize(waiting).unwrap();
    assert!(done.load(Ordering::SeqCst) && events::query(event) == Ok(true));
    for event in [event, theirs] {
        events::destroy(event).unwrap();
    }
    for stream in [first, second, waiting] {
        streams::destroy(stream).unwrap();
    }
}

#[test]
fn a_function_may_not_wait_for_a_shared_event_recorded_behind_it() {
    let event = events::create().unwrap();
    let theirs = elsewhere(event);
    let stream = streams::create().unwrap();
    let (go, told) = channel::<()>();
    let (answer, answers) = channel();
    let function = move || {
        told.recv().unwrap();
        answer.send(events::synchronize(event)).unwrap();
    };
    streams::enqueue(stream, Box::new(function)).unwrap();
    events::record(event, stream).unwrap();
    go.send(()).unwrap();
    let answer = answers.recv_timeout(Duration::from_secs(20)).expect("an answer");
    assert!(other(answer).contains("may not wait"));
    for event in [event, theirs] {
        events::destroy(event).unwrap();
    }
    streams::destroy(stream).unwrap();
}

#[test]
fn events_order_work_across_streams() {
    let (a, b) = (streams::create().unwrap(), streams::create().unwrap());
    let event = events::create().unwrap();
    let (value, right) = (Arc::new(AtomicU64::new(u64::MAX)), Arc::new(AtomicU64::new(0)));
    for n in 0..200 {
        let (writer, reader, right) = (Arc::clone(&value), Arc::clone(&value), Arc::clone(&right));
        let write = move || {
            if n % 20 == 0 {
                thread::sleep(Duration::from_millis(1));
            }
            writer.store(n, Ordering::Relaxed);
        };
        // If the write comes late, or the next one early, another number is found.
        let read = move || {
            if n % 20 == 10 {
                thread::sleep(Duration::from_millis(1));
            }
            right.fetch_add(u64::from(reader.load(Ordering::Relaxed) == n), Ordering::Relaxed);
        };
        streams::enqueue(a, Box::new(write)).unwrap();
        events::record(event, a).unwrap();
        events::stream_wait(b, event).unwrap();
        streams::enqueue(b, Box::new(read)).unwrap();
        events::record(event, b).unwrap();
        events::stream_wait(a, event).unwrap();
    }
    events::synchronize(event).unwrap();
    assert_eq!(right.load(Ordering::Relaxed), 200);
    events::destroy(event).unwrap();
    streams::destroy(a).unwrap();
    streams::destroy(b).unwrap();
}
