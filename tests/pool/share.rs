//! Pools shared between processes, with both ends in one: the books of both, whatever call fails, and random programs.

use crate::common::hook::Hooked;
use std::os::fd::AsFd;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use weir::backend::call::Call;
use weir::backend::fault::Faulty;
use weir::backend::host::HostBackend;
use weir::backend::import::{Importer, Line, Refusal};
use weir::backend::ipc::socket::{self, Socket};
use weir::backend::ipc::{self, Kind, Message};
use weir::backend::{Backend, BackendError};
use weir::base::error::Error;
use weir::base::units::{Addr, StreamHandle};
use weir::config::{Config, MemoryKind};
use weir::pool::{Attribute, Pool};

const MIB: u64 = 1 << 20;
const NONE: StreamHandle = StreamHandle(0);

fn config() -> Config {
    Config {
        memory: MemoryKind::Host,
        ipc_handle_types: 1,
        name: "test".into(),
        ..Config::default()
    }
}

/// Near its limit, so of small pages.
fn little() -> Config {
    Config {
        max_bytes: 48 * MIB,
        ..config()
    }
}

/// An exporting pool, and one that imports it.
struct Pair {
    here: Arc<Faulty>,
    there: Arc<Faulty>,
    /// Of the exporter's backend.
    hooks: Arc<Hooked>,
    exporter: Arc<Pool>,
    importer: Pool,
}

fn door(exporter: &Arc<Pool>) -> Socket {
    Socket::through(exporter.export().unwrap().as_fd())
        .unwrap()
        .unwrap()
}

/// Fails where a call would wait for ever.
fn in_time<R: Send + 'static>(call: impl FnOnce() -> R + Send + 'static) -> R {
    let (done, answer) = mpsc::channel();
    std::thread::spawn(move || done.send(call()));
    answer.recv_timeout(Duration::from_secs(20)).expect("an answer")
}

impl Pair {
    fn new(config: Config) -> Pair {
        let here = Faulty::new(HostBackend::shared().unwrap());
        let there = Faulty::new(HostBackend::shared().unwrap());
        let hooks = Hooked::new(here.clone());
        let exporter = Arc::new(Pool::new(config.clone(), hooks.clone()).unwrap());
        let importer = Importer::new(Line::open(&door(&exporter)).unwrap(), there.clone());
        let importer = Pool::of_imported(config, importer).unwrap();
        Pair {
            here,
            there,
            hooks,
            exporter,
            importer,
        }
    }

    fn alloc(&self, bytes: u64) -> Addr {
        self.exporter.alloc(bytes, 0, NONE).unwrap()
    }

    fn pass(&self, at: Addr) -> Result<Addr, Error> {
        let token = self.exporter.export_pointer(at)?;
        self.importer.import_pointer(&token).map(|block| block.0)
    }

    fn validate(&self) {
        self.exporter.validate();
        self.importer.validate();
    }

    /// Nothing is left on either side.
    fn end(self) {
        assert_eq!(self.importer.end().blocks, 0);
        self.there.assert_empty();
        assert_eq!(self.exporter.stats().unwrap().pending, 0);
        assert_eq!(self.exporter.end().blocks, 0);
        self.here.assert_empty();
    }
}

fn write(at: Addr, value: u8, bytes: u64) {
    let place = std::ptr::with_exposed_provenance_mut::<u8>(at.0 as usize);
    // SAFETY: a live block of these bytes.
    #[allow(unsafe_code)]
    unsafe {
        place.write_bytes(value, bytes as usize)
    };
}

fn holds(at: Addr, value: u8, bytes: u64) -> bool {
    let place = std::ptr::with_exposed_provenance::<u8>(at.0 as usize);
    // SAFETY: a live block of these bytes.
    #[allow(unsafe_code)]
    let block = unsafe { std::slice::from_raw_parts(place, bytes as usize) };
    block.iter().all(|&byte| byte == value)
}

#[test]
fn a_lent_block_keeps_its_memory_and_nothing_else_does() {
    let pair = Pair::new(config());
    let (lent, other) = (pair.alloc(20 * MIB), pair.alloc(20 * MIB));
    let there = pair.pass(lent).unwrap();
    write(lent, 7, 20 * MIB);
    assert!(holds(there, 7, 20 * MIB));
    pair.exporter.free(lent, NONE).unwrap();
    pair.exporter.free(other, NONE).unwrap();
    pair.validate();
    pair.exporter.squeeze().unwrap();
    let stats = pair.exporter.stats().unwrap();
    assert_eq!((stats.pending, stats.used), (20 * MIB, 0));
    assert!(
        stats.reserved < 40 * MIB,
        "what is not lent is given back: {stats:?}"
    );
    let again = pair.alloc(64 * MIB);
    write(again, 8, 64 * MIB);
    assert!(holds(there, 7, 20 * MIB));
    pair.validate();
    pair.importer.free(there, NONE).unwrap();
    assert_eq!(pair.importer.stats().unwrap().reserved, 0);
    assert_eq!(pair.there.reserved_bytes(), 0);
    assert_eq!(pair.exporter.stats().unwrap().pending, 0);
    pair.exporter.free(again, NONE).unwrap();
    pair.exporter.squeeze().unwrap();
    assert_eq!(pair.here.pages(), 0);
    pair.validate();
    pair.end();
}

#[test]
fn an_importer_takes_as_many_addresses_as_it_maps() {
    let pair = Pair::new(config());
    let small: Vec<Addr> = (0..20).map(|_| pair.alloc(256)).collect();
    let there: Vec<Addr> = small.iter().map(|&at| pair.pass(at).unwrap()).collect();
    let stats = pair.importer.stats().unwrap();
    assert_eq!(pair.there.reserved_bytes(), stats.reserved);
    assert_eq!(pair.there.mappings(), 20);
    // half of them begin in the middle of what a block may begin at
    assert!(there.iter().any(|at| at.0 % 512 != 0));
    pair.validate();
    for (n, &at) in there.iter().enumerate() {
        let inside = pair.importer.free(Addr(at.0 + 1), NONE);
        assert!(matches!(inside, Err(Error::InteriorPointer { .. })), "{inside:?}");
        match n % 2 {
            0 => pair.importer.free(at, NONE).map(drop).unwrap(),
            _ => pair.importer.free_batch(&[at], NONE).unwrap(),
        }
    }
    assert_eq!(pair.there.reserved_bytes(), 0);
    for at in small {
        pair.exporter.free(at, NONE).unwrap();
    }
    pair.end();
}

#[test]
fn whatever_call_fails_nothing_is_lost() {
    let boom = || BackendError::Other("boom".into());
    let kinds = [Call::Import, Call::Reserve, Call::Map];
    for kind in kinds {
        for nth in 1..=3 {
            let pair = Pair::new(little());
            let block = pair.alloc(40 * MIB);
            pair.there.fail_nth_of(kind, nth, boom());
            let first = pair.pass(block);
            let failed = pair.there.failed_calls() > 0;
            assert!(failed || nth > 1, "it is called");
            assert_eq!(first.is_err(), failed, "{kind:?} {nth}: {first:?}");
            pair.there.heal();
            pair.validate();
            if failed {
                pair.there.assert_empty();
            }
            let second = pair.pass(block).unwrap();
            pair.exporter.free(block, NONE).unwrap();
            assert_eq!(pair.exporter.stats().unwrap().pending, 40 * MIB);
            for at in first.into_iter().chain([second]) {
                pair.importer.free(at, NONE).unwrap();
            }
            pair.end();
        }
    }
    // the exporter's side
    for nth in 1..=3 {
        let pair = Pair::new(little());
        let block = pair.alloc(40 * MIB);
        pair.here.fail_nth_of(Call::Export, nth, boom());
        let first = pair.pass(block);
        assert!(
            matches!(&first, Err(Error::Backend(why)) if why.contains("boom")),
            "{first:?}"
        );
        pair.validate();
        let second = pair.pass(block).unwrap();
        for at in first.into_iter().chain([second]) {
            pair.importer.free(at, NONE).unwrap();
        }
        pair.exporter.free(block, NONE).unwrap();
        pair.end();
    }
    // giving back: the window stays until it can be
    for kind in [Call::Unmap, Call::Unreserve, Call::Release] {
        let pair = Pair::new(config());
        let block = pair.alloc(40 * MIB);
        let there = pair.pass(block).unwrap();
        pair.exporter.free(block, NONE).unwrap();
        pair.there.fail_nth_of(kind, 1, boom());
        pair.importer.free(there, NONE).unwrap();
        assert_eq!(pair.there.failed_calls(), 1);
        // the exporter has it back only once the importer has let all of it go
        assert_eq!(pair.exporter.stats().unwrap().pending, 40 * MIB, "{kind:?}");
        pair.validate();
        pair.importer.trim(0).unwrap();
        assert_eq!(pair.exporter.stats().unwrap().pending, 0, "{kind:?}");
        pair.end();
    }
}

#[test]
fn an_imported_pool_allocates_nothing_and_lets_its_memory_go() {
    let pair = Pair::new(config());
    let refused = |result: Result<Addr, Error>| {
        assert!(matches!(&result, Err(Error::NotSupported(why)) if why.contains("allocates nothing")));
    };
    refused(pair.importer.alloc(1, 0, NONE));
    refused(pair.importer.alloc(0, 0, NONE));
    let block = pair.alloc(100);
    let there = pair.pass(block).unwrap();
    // the rest of its pages is mapped, and nobody's
    refused(pair.importer.alloc(100, 0, NONE));
    assert_eq!(pair.importer.attribute(Attribute::ReleaseThreshold), Ok(0));
    pair.exporter.free(block, NONE).unwrap();
    assert_eq!(pair.importer.end().blocks, 1);
    let gone = pair.importer.free(there, NONE);
    assert!(matches!(gone, Err(Error::PoolDestroyed { .. })), "{gone:?}");
    assert_eq!(pair.exporter.stats().unwrap().pending, 0);
    pair.end();
}

#[test]
fn what_is_borrowed_while_the_pool_ends_is_given_back() {
    for call in [Call::Import, Call::Reserve, Call::Map] {
        let pair = Pair::new(config());
        let there = Faulty::new(HostBackend::shared().unwrap());
        let hooks = Hooked::new(there.clone());
        let importer = Importer::new(Line::open(&door(&pair.exporter)).unwrap(), hooks.clone());
        let importer = Arc::new(Pool::of_imported(config(), importer).unwrap());
        let block = pair.alloc(20 * MIB);
        let token = pair.exporter.export_pointer(block).unwrap();
        let kept = importer.import_pointer(&token).unwrap().0;
        let second = importer.clone();
        // the end waits for nobody: the exporter may not answer
        hooks.before(call, move || {
            let left = in_time(move || second.end());
            assert_eq!(left.largest, [(kept, 20 * MIB)]);
        });
        let ended = importer.import_pointer(&token);
        assert!(hooks.is_done());
        assert_eq!(ended, Err(Error::PoolDestroyed { handle: 0 }), "{call:?}");
        let again = importer.import_pointer(&token);
        assert_eq!(again, Err(Error::PoolDestroyed { handle: 0 }));
        there.assert_empty();
        // while the process goes on
        pair.exporter.free(block, NONE).unwrap();
        assert_eq!(pair.exporter.stats().unwrap().pending, 0, "{call:?}");
        pair.end();
    }
}

#[test]
fn each_of_many_blocks_comes_back_when_it_is_given_back() {
    let pair = Pair::new(config());
    let here: Vec<Addr> = (0..600).map(|_| pair.alloc(256)).collect();
    let there: Vec<Addr> = here.iter().map(|&at| pair.pass(at).unwrap()).collect();
    for at in here {
        pair.exporter.free(at, NONE).unwrap();
    }
    let bytes = pair.exporter.stats().unwrap().pending / 600;
    // from the middle, so that each is far from both ends of what is held
    let (before, after) = there.split_at(350);
    for (n, &at) in after.iter().chain(before).enumerate() {
        pair.importer.free(at, NONE).unwrap();
        let held = 599 - n as u64;
        assert_eq!(pair.exporter.stats().unwrap().pending, held * bytes);
        if n % 50 == 0 {
            pair.validate();
        }
    }
    pair.end();
}

#[test]
fn a_porter_that_panics_keeps_nobody_waiting() {
    let pair = Pair::new(config());
    let (lent, other) = (pair.alloc(20 * MIB), pair.alloc(20 * MIB));
    let there = pair.pass(lent).unwrap();
    write(lent, 7, 20 * MIB);
    pair.hooks.before(Call::Export, || panic!("the test's own"));
    let refused = pair.pass(other);
    assert!(matches!(refused, Err(Error::Stale(_))), "{refused:?}");
    pair.exporter.free(lent, NONE).unwrap();
    let exporter = pair.exporter.clone();
    let stats = in_time(move || exporter.trim(0).and_then(|()| exporter.stats()).unwrap());
    // whoever has it may still use it, and there is nobody to be told otherwise
    assert_eq!(stats.pending, 20 * MIB);
    assert!(holds(there, 7, 20 * MIB));
    let again = pair.exporter.export();
    assert!(matches!(&again, Err(Error::Internal(_))), "{again:?}");
    let again = pair.exporter.export_pointer(other);
    assert!(matches!(&again, Err(Error::Internal(_))), "{again:?}");
    pair.validate();
    pair.importer.free(there, NONE).unwrap();
    assert_eq!(pair.importer.end().blocks, 0);
    pair.there.assert_empty();
    assert_eq!(pair.exporter.end().blocks, 1);
    pair.here.assert_empty();
}

#[test]
fn pages_are_handed_over_as_long_as_their_block_is_lent() {
    let pair = Pair::new(config());
    let blocks = [pair.alloc(20 * MIB), pair.alloc(20 * MIB)];
    let [one, two] = blocks.map(|at| {
        let token = pair.exporter.export_pointer(at).unwrap();
        [token.at, token.number]
    });
    let (line, other) = Socket::pair().unwrap();
    let line = line.that_waits().unwrap();
    let hello = (Kind::Hello, [ipc::VERSION]);
    ipc::send(&door(&pair.exporter), hello.0, &hello.1, &[&other.into()]).unwrap();
    let answer = |kind| {
        let message: Message = ipc::receive(&line).unwrap().unwrap();
        assert_eq!(message.kind, kind);
        message
    };
    answer(Kind::Welcome);
    let borrow = |block: &[u64]| {
        ipc::send(&line, Kind::Borrow, block, &[]).unwrap();
        assert_ne!(answer(Kind::Lent).words[0], 0);
    };
    let give_back = |block: &[u64]| ipc::send(&line, Kind::Return, block, &[]).unwrap();
    let pages = || {
        ipc::send(&line, Kind::Fetch, &[], &[]).unwrap();
        answer(Kind::Pages).files.len()
    };
    // another thread gives back what it has while the pages of a block are asked for
    borrow(&one);
    borrow(&two);
    give_back(&one);
    assert_ne!(pages(), 0);
    // or the same block
    borrow(&two);
    give_back(&two);
    assert_ne!(pages(), 0);
    borrow(&one);
    give_back(&one);
    assert_eq!(pages(), 0, "of a block that is not lent");
    give_back(&two);
    for at in blocks {
        pair.exporter.free(at, NONE).unwrap();
    }
    pair.end();
}

#[test]
fn the_device_is_asked_under_no_lock() {
    let here = Faulty::new(HostBackend::shared().unwrap());
    let hooks = Hooked::new(here.clone());
    let pool = Arc::new(Pool::new(config(), hooks.clone()).unwrap());
    let second = pool.clone();
    hooks.before(Call::DeviceNumber, move || {
        in_time(move || second.export()).unwrap();
    });
    pool.export().unwrap();
    assert!(hooks.is_done());
    let asked = here.calls(Call::DeviceNumber);
    pool.export().unwrap();
    assert_eq!(here.calls(Call::DeviceNumber), asked, "once is enough");
    pool.end();
    here.fail_nth_of(Call::DeviceNumber, 1, BackendError::Other("boom".into()));
    let pool = Arc::new(Pool::new(config(), here.clone()).unwrap());
    let failed = pool.export();
    assert!(matches!(&failed, Err(Error::Backend(why)) if why.contains("boom")));
    pool.export().unwrap();
    pool.end();
    here.assert_empty();
}

#[test]
fn a_pool_that_ends_while_it_is_exported_gets_no_porter() {
    let export_while = |other: fn(&Pool)| {
        let here = Faulty::new(HostBackend::shared().unwrap());
        let hooks = Hooked::new(here.clone());
        let pool = Arc::new(Pool::new(config(), hooks.clone()).unwrap());
        let second = pool.clone();
        hooks.before(Call::DeviceNumber, move || other(&second));
        let answers = [pool.export().err(), pool.export().err()];
        assert!(hooks.is_done());
        pool.end();
        here.assert_empty();
        answers
    };
    let ended = Some(Error::PoolDestroyed { handle: 0 });
    assert_eq!(export_while(|pool| drop(pool.end())), [ended.clone(), ended]);
    // as when the process ends
    assert_eq!(
        export_while(Pool::dismiss),
        [Some(Error::Unloaded), Some(Error::Unloaded)]
    );
}

#[test]
fn only_an_exporter_that_has_ended_is_called_so() {
    let (near, far) = Socket::door(socket::unique().unwrap()).unwrap();
    // nobody listens until there is no room any more
    while far.send(&[0; 1000], &[]).is_ok() {}
    let full = Line::open(&far).unwrap_err();
    assert!(matches!(&full, Refusal::Failed(_)), "{full:?}");
    drop(near);
    let gone = Line::open(&far).unwrap_err();
    assert!(matches!(&gone, Refusal::Stale(_)), "{gone:?}");
}

/// Random programs: blocks come, are lent any number of times, and are freed on both sides in any order.
#[test]
fn contents_stay_whoever_frees_first() {
    struct Live {
        here: Option<Addr>,
        there: Vec<Addr>,
        bytes: u64,
        value: u8,
    }
    let limited = Config {
        max_bytes: 256 * MIB,
        ..config()
    };
    let pair = Pair::new(limited);
    let mut random = 1u64;
    let mut below = |most: u64| {
        random = random
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (random >> 33) % most
    };
    let mut live: Vec<Live> = Vec::new();
    for step in 0..500u64 {
        match below(8) {
            0..3 => {
                let bytes = [300, 5000, 100_000, 3 * MIB, 9 * MIB][below(5) as usize];
                match pair.exporter.alloc(bytes, 0, NONE) {
                    Ok(at) => {
                        let value = (step % 251) as u8;
                        write(at, value, bytes);
                        live.push(Live {
                            here: Some(at),
                            there: Vec::new(),
                            bytes,
                            value,
                        });
                    }
                    Err(error) => {
                        assert!(matches!(error, Error::OutOfMemory(_)), "{error}");
                        live.sort_by_key(|block| block.bytes);
                    }
                }
            }
            3 | 4 if !live.is_empty() => {
                let index = below(live.len() as u64) as usize;
                if let Some(at) = live[index].here {
                    live[index].there.push(pair.pass(at).unwrap());
                }
            }
            5 | 6 if !live.is_empty() => {
                let index = below(live.len() as u64) as usize;
                if let Some(at) = live[index].here.take() {
                    pair.exporter.free(at, NONE).unwrap();
                }
            }
            7 if !live.is_empty() => {
                let index = below(live.len() as u64) as usize;
                if let Some(at) = live[index].there.pop() {
                    pair.importer.free(at, NONE).unwrap();
                }
                if below(20) == 0 {
                    pair.exporter.squeeze().unwrap();
                }
            }
            _ => {}
        }
        live.retain(|block| block.here.is_some() || !block.there.is_empty());
        pair.validate();
        if step % 25 == 0 {
            for block in &live {
                let places = block.here.iter().chain(&block.there);
                places.for_each(|&at| assert!(holds(at, block.value, block.bytes), "{step}: {at}"));
            }
            let freed = live.iter().filter(|block| block.here.is_none());
            let least: u64 = freed.map(|block| block.bytes).sum();
            assert!(pair.exporter.stats().unwrap().pending >= least);
        }
    }
    for block in live {
        block.here.map(|at| pair.exporter.free(at, NONE).unwrap());
        block
            .there
            .into_iter()
            .for_each(|at| assert!(pair.importer.free(at, NONE).is_ok()));
    }
    pair.end();
}

#[test]
fn a_page_that_is_not_made_for_it_cannot_be_imported() {
    let backend = HostBackend::shared().unwrap();
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    assert!(backend.import(file.into(), 2 * MIB).is_err());
    let page = backend.create(2 * MIB).unwrap();
    assert!(backend.import(backend.export(page).unwrap(), 4 * MIB).is_err());
    let twice = backend.import(backend.export(page).unwrap(), 2 * MIB).unwrap();
    backend.release(page, 2 * MIB).unwrap();
    backend.release(twice, 2 * MIB).unwrap();
    let own = HostBackend::new().unwrap();
    let page = own.create(2 * MIB).unwrap();
    assert!(matches!(own.export(page), Err(BackendError::NotSupported(_))));
}
