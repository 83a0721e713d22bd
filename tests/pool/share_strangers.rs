//! Pools shared with processes that do not behave: an exporter goes on and ends whatever an importer does, and an importer
//! keeps its books whatever an exporter says.

use crate::common::hook::Hooked;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;
use weir::backend::Backend;
use weir::backend::call::Call;
use weir::backend::fault::Faulty;
use weir::backend::host::HostBackend;
use weir::backend::import::{Importer, Line, Refusal};
use weir::backend::ipc::socket::{self, Socket};
use weir::backend::ipc::token::{Token, What};
use weir::backend::ipc::{self, Kind, Welcome};
use weir::base::error::Error;
use weir::base::units::StreamHandle;
use weir::config::Config;
use weir::pool::Pool;

const MIB: u64 = 1 << 20;
const NONE: StreamHandle = StreamHandle(0);

fn config() -> Config {
    Config {
        ipc_handle_types: 1,
        ..crate::common::config()
    }
}

/// An exporter whose calls can be watched.
fn exporter() -> (Arc<Pool>, Arc<Hooked>) {
    let hooks = Hooked::new(HostBackend::shared().unwrap());
    (Arc::new(Pool::new(config(), hooks.clone()).unwrap()), hooks)
}

fn through(descriptor: &OwnedFd) -> Socket {
    Socket::through(descriptor.as_fd()).unwrap().unwrap()
}

fn importer(door: &Socket) -> Pool {
    let backend = HostBackend::shared().unwrap();
    Pool::of_imported(config(), Importer::new(Line::open(door).unwrap(), backend)).unwrap()
}

/// Fails where a call would wait for ever.
fn in_time<R: Send + 'static>(call: impl FnOnce() -> R + Send + 'static) -> R {
    let (done, answer) = mpsc::channel();
    thread::spawn(move || done.send(call()));
    answer.recv_timeout(Duration::from_secs(20)).expect("an answer")
}

fn hello(door: &Socket, line: OwnedFd) {
    assert_eq!(ipc::send(door, Kind::Hello, &[ipc::VERSION], &[&line]), Ok(true));
}

/// A socket that receives nothing until much has come.
#[allow(unsafe_code)]
fn reluctant(socket: &UnixStream) {
    let bytes: libc::c_int = 100_000;
    // SAFETY: a variable of ours, and its length.
    let code = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVLOWAT,
            (&raw const bytes).cast(),
            size_of_val(&bytes) as u32,
        )
    };
    assert_eq!(code, 0);
}

#[test]
fn the_porter_does_not_wait_for_the_rest_of_a_message() {
    let (pool, _) = exporter();
    let (mut line, other) = UnixStream::pair().unwrap();
    reluctant(&other);
    hello(&through(&pool.export().unwrap()), other.into());
    let closed = in_time(move || {
        let mut welcome = [0; 56];
        line.read_exact(&mut welcome).unwrap();
        line.write_all(b"x").unwrap();
        line.read(&mut welcome).unwrap() == 0
    });
    assert!(closed);
    in_time(move || pool.end());
}

/// Whenever the porter has answered, the next question is there.
fn keep_asking(hooks: &Arc<Hooked>, line: Arc<Socket>, block: [u64; 2]) {
    let again = Arc::downgrade(hooks);
    hooks.before(Call::Export, move || {
        while socket::wait(&[line.as_raw_fd()], true)[0].readable {
            assert!(ipc::receive(&line).unwrap().is_some());
        }
        ask(&line, block);
        keep_asking(&again.upgrade().unwrap(), line, block);
    });
}

fn ask(line: &Socket, block: [u64; 2]) {
    assert_eq!(ipc::send(line, Kind::Borrow, &block, &[]), Ok(true));
    assert_eq!(ipc::send(line, Kind::Fetch, &[], &[]), Ok(true));
}

#[test]
fn an_importer_that_never_stops_asking_holds_nobody_up() {
    let (pool, hooks) = exporter();
    let block = pool.alloc(4 * MIB, 0, NONE).unwrap();
    let token = pool.export_pointer(block).unwrap();
    let block = [token.at, token.number];
    let (line, other) = Socket::pair().unwrap();
    let line = Arc::new(line.that_waits().unwrap());
    hello(&through(&pool.export().unwrap()), other.into());
    assert_eq!(ipc::receive(&line).unwrap().unwrap().kind, Kind::Welcome);
    ask(&line, block);
    for kind in [Kind::Lent, Kind::Pages] {
        assert_eq!(ipc::receive(&line).unwrap().unwrap().kind, kind);
    }
    keep_asking(&hooks, line.clone(), block);
    ask(&line, block);
    let second = pool.clone();
    in_time(move || second.stats()).unwrap();
    in_time(move || pool.end());
}

/// Processor time that a thread of this process has used.
fn used(thread: libc::pid_t) -> Duration {
    let told = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).unwrap();
    Duration::from_nanos(told.split(' ').next().unwrap().parse().unwrap())
}

#[test]
fn a_descriptor_that_is_shut_down_stays_so_and_costs_nothing() {
    for how in [Shutdown::Both, Shutdown::Write] {
        let (pool, hooks) = exporter();
        let descriptor = pool.export().unwrap();
        let door = through(&descriptor);
        let imported = importer(&door);
        let tokens = [(); 2].map(|()| {
            let block = pool.alloc(4 * MIB, 0, NONE).unwrap();
            pool.export_pointer(block).unwrap()
        });
        let (told, porter) = mpsc::channel();
        #[allow(unsafe_code)]
        hooks.before(Call::Export, move || {
            // SAFETY: no precondition.
            told.send(unsafe { libc::gettid() }).unwrap();
        });
        imported.import_pointer(&tokens[0]).unwrap();
        let porter = porter.recv().unwrap();

        UnixStream::from(descriptor).shutdown(how).unwrap();
        // the porter sees it in its own time
        in_time({
            let pool = pool.clone();
            move || while pool.export().is_ok() {}
        });
        let before = used(porter);
        thread::sleep(Duration::from_millis(300));
        let spent = used(porter) - before;
        assert!(spent < Duration::from_millis(50), "{how:?}: {spent:?}");
        let again = pool.export();
        assert!(matches!(&again, Err(Error::Stale(why)) if why.contains("shut it down")));
        let refused = Line::open(&door);
        assert!(matches!(&refused, Err(Refusal::Stale(why)) if why.contains("shut it down")));
        imported.import_pointer(&tokens[1]).unwrap();
        assert_eq!(imported.end().blocks, 2);
        in_time(move || pool.end());
    }
}

/// Answers one importer as an exporter would, until it is gone, whatever is true of a block of one page of 2 MiB; how often
/// it was given back.
fn pretend(near: &Socket, offset: u64, bytes: u64) -> usize {
    let backend = HostBackend::shared().unwrap();
    let page = backend.create(2 * MIB).unwrap();
    let file = ipc::receive(near).unwrap().unwrap().files.pop().unwrap();
    let line = Socket::of(file).that_waits().unwrap();
    let welcome = Welcome {
        memory: config().memory as u64,
        pool: [7, 7],
        device: [0, 0],
    };
    ipc::send(&line, Kind::Welcome, &welcome.words(), &[]).unwrap();
    let mut returned = 0;
    while let Ok(Some(message)) = ipc::receive(&line) {
        match message.kind {
            Kind::Borrow => {
                ipc::send(&line, Kind::Lent, &[1, offset, bytes], &[]).unwrap();
            }
            Kind::Fetch => {
                let file = backend.export(page).unwrap();
                ipc::send(&line, Kind::Pages, &[2 * MIB], &[&file]).unwrap();
            }
            Kind::Return => returned += 1,
            other => panic!("{other:?}"),
        }
    }
    backend.release(page, 2 * MIB).unwrap();
    returned
}

#[test]
fn what_an_exporter_says_of_a_block_is_checked() {
    let page = 2 * MIB;
    // where the block lies, its bytes, and those of its token
    let cases = [
        (0, page, page, true),
        (page - 512, 512, 512, true),
        (0, 0, 0, false),
        (0, page + 512, page + 512, false),
        (page, 512, 512, false),
        (page - 512, 1024, 1024, false),
        (1 << 40, 512, 512, false),
        (u64::MAX - 511, 1024, 1024, false),
        (0, u64::MAX, u64::MAX, false),
        (0, 1024, 512, false),
        (1, 512, 512, false),
    ];
    for (offset, bytes, named, good) in cases {
        let (near, far) = Socket::door(socket::unique().unwrap()).unwrap();
        let near = near.that_waits().unwrap();
        let exporter = thread::spawn(move || pretend(&near, offset, bytes));
        let backend = Faulty::new(HostBackend::shared().unwrap());
        let line = Line::open(&far).unwrap();
        let pool = Pool::of_imported(config(), Importer::new(line, backend.clone())).unwrap();
        let token = Token {
            what: What::Block,
            pool: [7, 7],
            at: 1,
            number: 1,
            bytes: named,
            driver: [0; 8],
        };
        let block = pool.import_pointer(&token);
        pool.validate();
        match block {
            Ok((at, bytes)) => {
                assert!(good && bytes == named, "{offset} {bytes}");
                pool.free(at, NONE).unwrap();
            }
            Err(Error::Backend(why)) => assert!(!good && why.contains("makes no sense"), "{why}"),
            Err(error) => panic!("{error}"),
        }
        assert_eq!(pool.stats().unwrap().reserved, 0);
        assert_eq!(pool.end().blocks, 0);
        backend.assert_empty();
        assert_eq!(exporter.join().unwrap(), 1, "given back");
    }
}
