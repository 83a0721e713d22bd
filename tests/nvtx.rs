//! Blocks that a tool is told of through NVTX. The tool is the strict one of the C tests; since a process has one tool
//! at most, each part runs in a process of its own: this test program again, with `WEIR_TEST_ROLE` set.

mod common;

use common::real::end;
use common::{K, M, config};
use std::ffi::{CString, c_void};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::{Arc, OnceLock};
use weir::backend::call::Call;
use weir::backend::counting::Counting;
use weir::backend::fault::Faulty;
use weir::backend::{Backend, BackendError, nvtx};
use weir::base::units::{Addr, StreamHandle};
use weir::config::Config;
use weir::pool::Pool;

const HOST: StreamHandle = StreamHandle(0);

/// The tool, built once.
fn tool() -> &'static PathBuf {
    static TOOL: OnceLock<PathBuf> = OnceLock::new();
    TOOL.get_or_init(|| {
        let built = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("nvtx_tool.so");
        let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("c_tests/device/nvtx_tool.c");
        let mut compiler = cc::Build::new();
        compiler.cargo_metadata(false).opt_level(1).warnings(true);
        let machine = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let compiler = compiler.target(&machine).host(&machine).get_compiler();
        let status = compiler
            .to_command()
            .args(["-std=c11", "-D_GNU_SOURCE", "-fPIC", "-shared", "-pthread", "-o"])
            .args([&built, &source])
            .status()
            .expect("a C compiler");
        assert!(status.success());
        built
    })
}

/// Runs a role with the tool, and with what else is to be in the environment.
fn run(role: &str, environment: &[(&str, &str)]) -> Output {
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "role", "--nocapture"])
        .env("WEIR_TEST_ROLE", role)
        .env("NVTX_INJECTION64_PATH", tool())
        .envs(environment.iter().copied())
        .output()
        .expect("a process");
    print!("{}", String::from_utf8_lossy(&output.stdout));
    print!("{}", String::from_utf8_lossy(&output.stderr));
    output
}

fn passes(role: &str, environment: &[(&str, &str)]) {
    assert!(run(role, environment).status.success());
}

#[test]
fn every_block_is_a_region_while_it_lives() {
    passes("blocks", &[]);
    passes("blocks", &[("WEIR_TEST_TOOL", "no_core")]);
}

#[test]
fn leaked_blocks_stay_for_the_tool_to_report() {
    passes("leak", &[]);
}

#[test]
fn a_pool_that_nobody_ended_is_left_to_the_driver_s_own_account() {
    passes("abandoned", &[]);
}

#[test]
fn memory_that_could_not_be_given_back_is_a_heap_again() {
    passes("failed_release", &[]);
}

#[test]
fn a_heap_that_the_tool_does_not_take_is_left_alone() {
    passes("no_heaps", &[("WEIR_TEST_TOOL_HEAPS", "0")]);
}

#[test]
fn without_a_tool_nothing_is_watched() {
    passes("none", &[("NVTX_INJECTION64_PATH", "")]);
}

#[test]
fn a_tool_that_cannot_be_told_is_an_error() {
    passes("refused:does not watch memory", &[("WEIR_TEST_TOOL", "refuse")]);
    passes("refused:in part only", &[("WEIR_TEST_TOOL", "part")]);
    passes(
        "refused:cannot be loaded",
        &[("NVTX_INJECTION64_PATH", "/nowhere/tool.so")],
    );
    passes(
        "refused:knows no extensions",
        &[("NVTX_INJECTION64_PATH", "libc.so.6")],
    );
}

#[test]
fn the_tool_notices_mistakes() {
    // or the tests above would show nothing
    assert!(!run("twice", &[]).status.success());
}

/// The other processes' code; nothing in the process that the test runner started.
#[test]
fn role() {
    match std::env::var("WEIR_TEST_ROLE").as_deref() {
        Err(_) => {}
        Ok("blocks") => blocks(),
        Ok("leak") => leak(),
        Ok("abandoned") => abandoned(),
        Ok("failed_release") => failed_release(),
        Ok("no_heaps") => no_heaps(),
        Ok("none") => none(),
        Ok("twice") => twice(),
        Ok(role) => refused(role.strip_prefix("refused:").expect("a role")),
    }
}

fn watched() -> Result<(Arc<dyn Backend>, Arc<Faulty>), BackendError> {
    let faulty = Faulty::new(Counting::with_addresses(true));
    Ok((nvtx::watched(Arc::clone(&faulty) as _)?, faulty))
}

fn pool(max_bytes: u64) -> (Pool, Arc<Faulty>) {
    let (backend, faulty) = watched().expect("a tool");
    assert!(backend.watches_blocks());
    let config = Config {
        max_bytes,
        ..config()
    };
    (Pool::new(config, backend).expect("a pool"), faulty)
}

/// What the tool has written down: address and bytes of each heap, or region.
#[allow(unsafe_code)]
fn ranges(what: &str) -> Vec<(u64, u64)> {
    type List = unsafe extern "C" fn(*mut (u64, u64), usize) -> usize;
    let path = std::env::var("NVTX_INJECTION64_PATH").expect("a tool");
    let (path, name) = (CString::new(path), CString::new(format!("nvtx_tool_{what}")));
    let (path, name) = (path.expect("a path"), name.expect("a name"));
    // SAFETY: C strings; the library is loaded already and stays so.
    let function = unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        assert!(!library.is_null(), "the tool is loaded");
        libc::dlsym(library, name.as_ptr())
    };
    assert!(!function.is_null());
    let mut ranges = vec![(0, 0); 1000];
    // SAFETY: the tool's header says so: a list of pairs of 64 bits, and its length.
    let count = unsafe {
        let list = std::mem::transmute::<*mut c_void, List>(function);
        list(ranges.as_mut_ptr(), ranges.len())
    };
    ranges.truncate(count);
    ranges
}

fn alloc(pool: &Pool, bytes: u64) -> (u64, u64) {
    (pool.alloc(bytes, 0, HOST).expect("a block").0, bytes)
}

fn free(pool: &Pool, block: (u64, u64)) {
    pool.free(Addr(block.0), HOST).expect("a live block");
}

fn blocks() {
    let (pool, faulty) = pool(0);
    let mut live: Vec<(u64, u64)> = [100, 33 * K + 1, 5 * M + 3, 1, 60 * M]
        .iter()
        .map(|&bytes| alloc(&pool, bytes))
        .collect();
    // of the size that was asked for, and where that is nothing, of a byte
    let nothing = alloc(&pool, 0);
    live.push((nothing.0, 1));
    let aligned = pool.alloc(3 * M + 7, 4 * M, HOST).expect("a block");
    live.push((aligned.0, 3 * M + 7));
    let sizes = [700, 2 * M + 1, 0];
    let mut batch = [Addr(0); 3];
    pool.alloc_batch(&sizes, HOST, &mut batch).expect("blocks");
    live.extend(batch.iter().zip(sizes).map(|(at, bytes)| (at.0, bytes.max(1))));
    live.sort_unstable();
    assert_eq!(ranges("regions"), live);
    let heaps = ranges("heaps");
    assert_eq!(heaps.len() as u64, faulty.pages());
    assert_eq!(
        heaps.iter().map(|heap| heap.1).sum::<u64>(),
        faulty.created_bytes()
    );
    // nobody had these
    pool.warmup(&[512, 3 * M], &[20, 2], HOST).expect("blocks");
    faulty.fail_nth_of(Call::Create, 1, BackendError::Other("on purpose".into()));
    pool.alloc_batch(&[10, 20, 500 * M], HOST, &mut [Addr(0); 3])
        .expect_err("a failure");
    assert_eq!(ranges("regions"), live);
    // nor does a free that is refused end a region
    pool.free(Addr(live[2].0 + 1), HOST)
        .expect_err("inside a block or none");
    let twice = [Addr(live[0].0), Addr(live[0].0)];
    pool.free_batch(&twice, HOST).expect_err("twice");
    assert_eq!(ranges("regions"), live);
    pool.free_batch(&batch, HOST).expect("live blocks");
    live.retain(|block| !batch.contains(&Addr(block.0)));
    pool.free_synced(Addr(live.remove(3).0)).expect("a live block");
    assert_eq!(ranges("regions"), live);
    // what is freed may be handed out again, and what is given back may come again
    for round in 0..50 {
        let block = alloc(&pool, 1 + round * 50 * K);
        assert!(ranges("regions").contains(&block));
        free(&pool, block);
        if round % 8 == 0 {
            pool.trim(0).expect("a trim");
        }
    }
    assert_eq!(ranges("regions"), live);
    for block in live {
        free(&pool, block);
    }
    end(pool, &faulty);
    assert_eq!((ranges("heaps"), ranges("regions")), (vec![], vec![]));
}

fn leak() {
    let (pool, faulty) = pool(0);
    let first = alloc(&pool, 1234);
    let large = alloc(&pool, 100 * M);
    let lost = alloc(&pool, 70 * M + 5);
    free(&pool, large);
    let leaked = pool.end();
    assert_eq!(leaked.blocks, 2);
    let mut blocks = [first, lost];
    blocks.sort_unstable();
    assert_eq!(ranges("regions"), blocks);
    let heaps = ranges("heaps");
    assert_eq!((heaps.len(), faulty.pages()), (2, 2), "of three");
    for block in blocks {
        let holds = |heap: &&(u64, u64)| heap.0 <= block.0 && block.0 + block.1 <= heap.0 + heap.1;
        assert_eq!(heaps.iter().filter(holds).count(), 1);
    }
}

fn abandoned() {
    let (pool, _) = pool(0);
    let (lost, freed) = (alloc(&pool, 1234), alloc(&pool, 100 * M));
    free(&pool, freed);
    assert_eq!(ranges("heaps").len(), 2);
    pool.abandon();
    let heaps = ranges("heaps");
    assert_eq!(heaps.len(), 1, "the one with a block in it");
    assert!(heaps[0].0 <= lost.0 && lost.0 < heaps[0].0 + heaps[0].1);
    // a static destructor may still end it
    free(&pool, lost);
    assert_eq!(pool.end().blocks, 0);
    assert_eq!(ranges("heaps"), []);
}

fn failed_release() {
    let (pool, faulty) = pool(0);
    let block = alloc(&pool, 20 * M);
    let heaps = ranges("heaps");
    free(&pool, block);
    faulty.fail_nth_of(Call::Release, 1, BackendError::Other("on purpose".into()));
    pool.trim(0).expect_err("a failure");
    assert_eq!(ranges("heaps"), heaps);
    let creates = faulty.calls(Call::Create);
    let again = alloc(&pool, 20 * M);
    assert_eq!(faulty.calls(Call::Create), creates);
    assert_eq!(ranges("regions"), [again]);
    free(&pool, again);
    end(pool, &faulty);
    assert_eq!(ranges("heaps"), []);
}

fn no_heaps() {
    let (pool, faulty) = pool(0);
    let block = alloc(&pool, 20 * M);
    assert_eq!((ranges("heaps"), ranges("regions")), (vec![], vec![]));
    free(&pool, block);
    end(pool, &faulty);
}

fn none() {
    let (backend, faulty) = watched().expect("no tool is no error");
    assert!(!backend.watches_blocks());
    assert!(std::ptr::addr_eq(Arc::as_ptr(&backend), Arc::as_ptr(&faulty)));
}

fn twice() {
    let (backend, _) = watched().expect("a tool");
    let (at, _) = backend.create_at(2 * M).expect("memory");
    backend.block_allocated(at, 100);
    backend.block_allocated(Addr(at.0 + 99), 1);
}

fn refused(why: &str) {
    for _ in 0..2 {
        match watched() {
            Err(BackendError::NotSupported(text)) => {
                assert!(
                    text.contains(why) && text.contains("NVTX_INJECTION64_PATH"),
                    "{text}"
                )
            }
            other => panic!("{:?}", other.map(drop)),
        }
    }
}
