//! The stand-in driver (`standin/`), built when a test first wants it, and the parts of it that the tests call
//! themselves.
//!
//! A driver is a process's own, and its report of what was left open comes when the process ends. So each test that
//! wants one runs in a process of its own: this test program again, for one test, with `WEIR_TEST_ROLE` set.

use std::ffi::{CString, OsStr, c_char, c_int, c_uint, c_void};
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::SystemTime;

/// What an exit means that the stand-in forced because something was left open.
pub const LEFT_OPEN: i32 = 86;

fn sources() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("standin/src");
    let entries = std::fs::read_dir(folder).expect("the sources of the stand-in");
    entries.map(|entry| entry.expect("an entry").path()).collect()
}

fn changed(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|data| data.modified()).ok()
}

/// The library, compiled anew if it is older than its sources, by one of this program's threads.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(compiled)
}

fn compiled() -> PathBuf {
    let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libcuda.so.1");
    let sources = sources();
    let newest = sources.iter().filter_map(|source| changed(source)).max();
    if changed(&library) >= newest {
        return library;
    }
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let compiler = cc::Build::new()
        .target(&target)
        .host(&target)
        .opt_level(1)
        .cargo_metadata(false)
        .get_compiler();
    // under another name first: other test programs may be at it as well
    let fresh = library.with_extension(std::process::id().to_string());
    let code = sources
        .iter()
        .filter(|source| source.extension() == Some(OsStr::new("c")));
    let status = compiler
        .to_command()
        .args([
            "-std=gnu11",
            "-g",
            "-shared",
            "-fPIC",
            "-Wl,-soname,libcuda.so.1",
            "-o",
        ])
        .arg(&fresh)
        .args(code)
        .arg("-lpthread")
        .status()
        .expect("a C compiler");
    assert!(status.success(), "the stand-in does not compile");
    std::fs::rename(&fresh, &library).expect("the library's place");
    library
}

/// Is this the process that `alone` started for a test?
pub fn is_alone() -> bool {
    std::env::var_os("WEIR_TEST_ROLE").is_some()
}

/// Runs a test of the caller's file again in a process of its own, with the stand-in as its driver and more variables.
#[track_caller]
pub fn again(test: &str, variables: &[(&str, &str)]) -> Output {
    let file = Path::new(Location::caller().file()).file_stem().expect("a file");
    let test = &format!("{}::{test}", file.display()); // the file is a module of its program
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env("WEIR_TEST_ROLE", test)
        .env("WEIR_CUDA_LIBRARY", library())
        .envs(variables.iter().copied())
        .output()
        .expect("this program again");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(!said.contains("running 0 tests"), "there is no test named {test}");
    output
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs `body` as the test of that name, in a process of its own that must end well, with nothing left open.
#[track_caller]
pub fn alone(test: &str, variables: &[(&str, &str)], body: impl FnOnce()) {
    if is_alone() {
        return body();
    }
    let output = again(test, variables);
    assert!(
        output.status.success(),
        "{:?}\n{}",
        output.status,
        stderr(&output)
    );
}

/// Runs `body` as the test of that name, in a process that the stand-in must abort with these words.
#[track_caller]
pub fn aborted(test: &str, words: &str, body: impl FnOnce()) {
    use std::os::unix::process::ExitStatusExt;
    if is_alone() {
        return body();
    }
    let output = again(test, &[]);
    let said = stderr(&output);
    assert_eq!(
        output.status.signal(),
        Some(libc::SIGABRT),
        "{:?}\n{said}",
        output.status
    );
    assert!(said.contains(words), "{words:?} was not said, but\n{said}");
}

pub type Code = c_uint;
pub const SUCCESS: Code = 0;

/// The driver's context, stream, event, graph.
pub type Object = *mut c_void;

macro_rules! calls {
    ($($field:ident $name:literal ($($arg:ty),*) $(-> $result:ty)?;)*) => {
        /// Calls of the driver and of its control.
        pub struct Calls {
            $(pub $field: unsafe extern "C" fn($($arg),*) $(-> $result)?,)*
        }

        impl Calls {
            fn find() -> Calls {
                let path = std::env::var("WEIR_CUDA_LIBRARY").expect("a library");
                let path = CString::new(path).expect("a path");
                // SAFETY: the library that was built for these tests.
                let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
                assert!(!library.is_null(), "the stand-in cannot be opened");
                let find = |name: &str| {
                    let name = CString::new(name).expect("a name");
                    // SAFETY: an open library.
                    let call = unsafe { libc::dlsym(library, name.as_ptr()) };
                    assert!(!call.is_null(), "the stand-in has no {name:?}");
                    call
                };
                // SAFETY: the types are those of the functions.
                unsafe {
                    Calls {
                        $($field: std::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C" fn($($arg),*) $(-> $result)?,
                        >(find($name)),)*
                    }
                }
            }
        }
    };
}

calls! {
    init "cuInit" (c_uint) -> Code;
    context_retain "cuDevicePrimaryCtxRetain" (*mut Object, c_int) -> Code;
    context_release "cuDevicePrimaryCtxRelease" (c_int) -> Code;
    context_reset "cuDevicePrimaryCtxReset_v2" (c_int) -> Code;
    context_state "cuDevicePrimaryCtxGetState" (c_int, *mut c_uint, *mut c_int) -> Code;
    context_current "cuCtxGetCurrent" (*mut Object) -> Code;
    context_set "cuCtxSetCurrent" (Object) -> Code;
    context_create "cuCtxCreate_v2" (*mut Object, c_uint, c_int) -> Code;
    context_destroy "cuCtxDestroy_v2" (Object) -> Code;
    stream_create "cuStreamCreate" (*mut Object, c_uint) -> Code;
    stream_destroy "cuStreamDestroy_v2" (Object) -> Code;
    stream_synchronize "cuStreamSynchronize" (Object) -> Code;
    stream_query "cuStreamQuery" (Object) -> Code;
    stream_wait_event "cuStreamWaitEvent" (Object, Object, c_uint) -> Code;
    stream_begin_capture "cuStreamBeginCapture_v2" (Object, c_uint) -> Code;
    stream_end_capture "cuStreamEndCapture" (Object, *mut Object) -> Code;
    stream_capture_status "cuStreamIsCapturing" (Object, *mut c_uint) -> Code;
    exchange_capture_mode "cuThreadExchangeStreamCaptureMode" (*mut c_uint) -> Code;
    graph_destroy "cuGraphDestroy" (Object) -> Code;
    graph_instantiate "cuGraphInstantiateWithFlags" (*mut Object, Object, u64) -> Code;
    graph_launch "cuGraphLaunch" (Object, Object) -> Code;
    graph_exec_destroy "cuGraphExecDestroy" (Object) -> Code;
    event_create "cuEventCreate" (*mut Object, c_uint) -> Code;
    event_destroy "cuEventDestroy_v2" (Object) -> Code;
    event_record "cuEventRecord" (Object, Object) -> Code;
    event_query "cuEventQuery" (Object) -> Code;
    copy_to_host_async "cuMemcpyDtoHAsync_v2" (*mut c_void, u64, usize, Object) -> Code;
    launch_function "cuLaunchHostFunc" (Object, unsafe extern "C" fn(*mut c_void), *mut c_void) -> Code;
    fill "cuMemsetD8Async" (u64, u8, usize, Object) -> Code;
    copy_to_host "cuMemcpyDtoH_v2" (*mut c_void, u64, usize) -> Code;
    memory_allocate "cuMemAlloc_v2" (*mut u64, usize) -> Code;
    memory_free "cuMemFree_v2" (u64) -> Code;
    memory_info "cuMemGetInfo_v2" (*mut usize, *mut usize) -> Code;
    access "cuMemGetAccess" (*mut u64, *const [c_int; 2], u64) -> Code;
    fail "standin_fail" (*const c_char, u64, c_int);
    fail_any "standin_fail_any" (u64, c_int);
    delay "standin_delay" (*const c_char, u64, u64);
    calls "standin_calls" (*const c_char) -> u64;
    reset_faults "standin_reset_faults" ();
    faults_left "standin_faults_left" () -> u64;
    lose_device "standin_lose_device" (c_int);
    reset_device "standin_reset_device" (c_int);
    hold_memory "standin_hold_memory" (c_int, u64);
    set_peer "standin_set_peer" (c_int, c_int, c_int);
    unload "standin_unload" ();
    unload_quietly "standin_unload_quietly" ();
    open "standin_open" (*mut c_char, usize) -> u64;
}

/// The stand-in, as the tests call it.
pub fn cu() -> &'static Calls {
    static CALLS: OnceLock<Calls> = OnceLock::new();
    CALLS.get_or_init(Calls::find)
}

/// Makes a call of the driver that must succeed.
macro_rules! ok {
    ($call:ident($($arg:expr),* $(,)?)) => {{
        // SAFETY: the arguments are what the driver's call takes.
        let code = unsafe { ($crate::common::standin::cu().$call)($($arg),*) };
        assert_eq!(code, $crate::common::standin::SUCCESS, stringify!($call));
    }};
}
/// Makes a call of the stand-in's control.
macro_rules! control {
    ($call:ident($($arg:expr),* $(,)?)) => {{
        // SAFETY: the arguments are what the call takes.
        unsafe { ($crate::common::standin::cu().$call)($($arg),*) }
    }};
}
#[allow(unused_imports)] // by the tests that use no driver
pub(crate) use {control, ok};

/// What is open now, in the stand-in's words; "" if nothing is.
pub fn open() -> String {
    let mut text = [0u8; 512];
    let count = control!(open(text.as_mut_ptr().cast(), text.len()));
    if count == 0 {
        return String::new();
    }
    let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
    String::from_utf8_lossy(&text[..end]).into_owned()
}

/// Calls of one name so far.
pub fn calls(name: &str) -> u64 {
    let name = CString::new(name).expect("a name");
    control!(calls(name.as_ptr()))
}

/// The nth call of a name from now fails.
pub fn fail(name: &str, nth: u64, code: c_int) {
    let name = CString::new(name).expect("a name");
    control!(fail(name.as_ptr(), nth, code));
}

/// The nth call of a name from now takes so much longer.
pub fn delay(name: &str, nth: u64, microseconds: u64) {
    let name = CString::new(name).expect("a name");
    control!(delay(name.as_ptr(), nth, microseconds));
}

/// A device's primary context, current on this thread, for a program that uses streams of its own.
pub struct Device(pub c_int, pub Object);

impl Device {
    pub fn open(device: c_int) -> Device {
        let mut context = std::ptr::null_mut();
        ok!(init(0));
        ok!(context_retain(&raw mut context, device));
        ok!(context_set(context));
        Device(device, context)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            ok!(context_set(std::ptr::null_mut()));
            ok!(context_release(self.0));
        }
    }
}

/// A stream of the current context, not ordered with the legacy one.
pub fn stream() -> Object {
    let mut stream = std::ptr::null_mut();
    ok!(stream_create(&raw mut stream, 1));
    stream
}

/// Ends a stream's capture. Nobody wants its graph.
pub fn end_capture(captured: Object) {
    let mut graph = std::ptr::null_mut();
    ok!(stream_end_capture(captured, &raw mut graph));
    ok!(graph_destroy(graph));
}

/// The context that is current on this thread.
pub fn current() -> Object {
    let mut context = std::ptr::null_mut();
    ok!(context_current(&raw mut context));
    context
}

/// This thread's capture mode.
pub fn capture_mode() -> c_uint {
    let mut mode = 0;
    ok!(exchange_capture_mode(&raw mut mode));
    let mut back = mode;
    ok!(exchange_capture_mode(&raw mut back));
    mode
}

/// Calls of all kinds since the faults were last reset, but for those that only tell.
pub fn all_calls() -> u64 {
    control!(calls(std::ptr::null()))
}

/// Has `second` wait for what was queued on `first`, without the knowledge of any pool.
pub fn order(first: Object, second: Object) {
    let mut event = std::ptr::null_mut();
    ok!(event_create(&raw mut event, 2));
    ok!(event_record(event, first));
    ok!(stream_wait_event(second, event, 0));
    ok!(event_destroy(event));
}

unsafe extern "C" fn sleep(microseconds: Object) {
    std::thread::sleep(std::time::Duration::from_micros(microseconds.addr() as u64));
}

/// Keeps a stream busy for a while.
pub fn rest(stream: Object, microseconds: usize) {
    ok!(launch_function(
        stream,
        sleep,
        std::ptr::without_provenance_mut(microseconds)
    ));
}
