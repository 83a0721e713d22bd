//! The driver's library, opened on first use, and what its result codes mean.
//!
//! Nothing of CUDA is needed to build, link or load weir. The library is `libcuda.so.1`, or what `WEIR_CUDA_LIBRARY`
//! names. Once opened it stays; a failure is not remembered, so a later use tries again.
//!
//! Invariant: after the process has forked, after the driver has answered that it is gone, and once the exit handler
//! registered just before it was opened has run, no call is made. Exit handlers run in reverse order, so those of the
//! driver have run by then, and after them even a query may crash.
//!
//! Locks: `OPENING`, while the library is opened.

use super::later::{GET_PROC_ADDRESS_LEGACY_STREAM, LATER_STICKY};
use super::symbols::{Code, Exports, Symbols};
use crate::backend::{BackendError, process};
use cuda_driver_sys::{CUdevice, CUresult};
use std::ffi::{CStr, CString, OsString, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStringExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Names another library than `libcuda.so.1`.
const VARIABLE: &str = "WEIR_CUDA_LIBRARY";
const LIBRARY: &str = "libcuda.so.1";
pub(super) const SUCCESS: Code = CUresult::CUDA_SUCCESS as Code;
const NOT_INITIALIZED: Code = CUresult::CUDA_ERROR_NOT_INITIALIZED as Code;
const DEINITIALIZED: Code = CUresult::CUDA_ERROR_DEINITIALIZED as Code;

static DRIVER: OnceLock<Driver> = OnceLock::new();
static OPENING: Mutex<()> = Mutex::new(());
static GONE: AtomicBool = AtomicBool::new(false);

/// The driver, opened and initialised.
#[derive(Debug)]
pub struct Driver {
    pub(super) symbols: Symbols,
    version: c_int,
    devices: c_int,
}

/// May a call be made? False in a forked child, and once the driver is gone.
#[inline]
pub fn usable() -> bool {
    !process::forked() && !GONE.load(Ordering::Relaxed)
}

/// The same, where a call has been made since that was last asked: it may have said that the driver is gone.
#[inline]
pub(super) fn still_usable() -> Result<(), BackendError> {
    if usable() {
        Ok(())
    } else {
        Err(BackendError::Unloaded)
    }
}

extern "C" fn on_exit() {
    set_gone();
}

fn set_gone() {
    GONE.store(true, Ordering::Relaxed);
    process::disturb();
}

/// The driver, if somebody has opened it here.
#[inline]
pub fn opened() -> Option<&'static Driver> {
    DRIVER.get()
}

/// Opens the driver if the program has loaded its library, which tells that it is used. A process that has not is asked
/// anew each time, because it may yet.
pub(super) fn open_if_loaded() -> Result<&'static Driver, String> {
    let name = library_name();
    let path = CString::new(name.into_vec()).map_err(|_| format!("{VARIABLE} has a NUL inside"))?;
    // SAFETY: a C string; nothing is loaded by this.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        return Err("the program has not loaded the CUDA driver".into());
    }
    // SAFETY: opened above; the program's own reference stays.
    unsafe { libc::dlclose(handle) };
    open()
}

/// The library's name.
fn library_name() -> OsString {
    let named = std::env::var_os(VARIABLE).filter(|name| !name.is_empty());
    named.unwrap_or_else(|| LIBRARY.into())
}

/// Opens the driver. Err: what was tried, and how it failed.
pub fn open() -> Result<&'static Driver, String> {
    if let Some(driver) = DRIVER.get() {
        return Ok(driver);
    }
    let _alone = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    if DRIVER.get().is_none() {
        let driver = find().map_err(|why| {
            format!(
                "no usable CUDA driver: {why}; install NVIDIA's driver, name its library in {VARIABLE}, or ask for \
                 WEIR_MEMORY_HOST or device -1 (WEIR_DEVICE_HOST)"
            )
        })?;
        let _ = DRIVER.set(driver);
    }
    DRIVER
        .get()
        .ok_or_else(|| "the CUDA driver could not be kept".into())
}

fn find() -> Result<Driver, String> {
    static WATCHED: OnceLock<Result<(), BackendError>> = OnceLock::new();
    WATCHED
        .get_or_init(|| process::at_exit(on_exit))
        .clone()
        .map_err(|error| error.to_string())?;
    let library = Library::open()?;
    // SAFETY: cuInit has had this type since CUDA 2.
    let init: Option<unsafe extern "C" fn(c_uint) -> Code> =
        unsafe { std::mem::transmute(library.function("cuInit")) };
    let init = init.ok_or_else(|| format!("{} has no cuInit", library.name))?;
    // SAFETY: no precondition.
    let code = unsafe { init(0) };
    if code != SUCCESS {
        return Err(format!(
            "cuInit of {} gave {}",
            library.name,
            library.describe(code)
        ));
    }
    // SAFETY: as for cuInit.
    let get_version: Option<unsafe extern "C" fn(*mut c_int) -> Code> =
        unsafe { std::mem::transmute(library.function("cuDriverGetVersion")) };
    let get_version = get_version.ok_or_else(|| format!("{} has no cuDriverGetVersion", library.name))?;
    let mut version = 0;
    // SAFETY: the variable is ours.
    let code = unsafe { get_version(&raw mut version) };
    if code != SUCCESS {
        return Err(format!("cuDriverGetVersion gave {}", library.describe(code)));
    }
    let lookup = Lookup::new(&library, version);
    // SAFETY: the lookup gives what the library has by that name.
    let symbols = unsafe { Symbols::find(|base, exports| lookup.find(base, exports)) }.map_err(|name| {
        format!(
            "{}, a driver for CUDA {}, has no {name}",
            library.name,
            dotted(version)
        )
    })?;
    let mut devices = 0;
    // SAFETY: the variable is ours.
    let code = unsafe { (symbols.device_get_count)(&raw mut devices) };
    if code != SUCCESS {
        return Err(format!("cuDeviceGetCount gave {}", library.describe(code)));
    }
    Ok(Driver {
        symbols,
        version,
        devices,
    })
}

fn dotted(version: c_int) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

struct Library {
    name: String,
    handle: *mut c_void,
}

impl Library {
    fn open() -> Result<Library, String> {
        let by = if std::env::var_os(VARIABLE).is_some_and(|name| !name.is_empty()) {
            VARIABLE
        } else {
            "by default"
        };
        let name = library_name();
        let shown = name.to_string_lossy().into_owned();
        let Ok(path) = CString::new(name.into_vec()) else {
            return Err(format!("{VARIABLE} has a NUL inside"));
        };
        // SAFETY: a C string; the initialisers that run are those of a library that the user wants opened.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: NULL or a C string that lives until this thread's next call of the dl family.
            let why = unsafe { text(libc::dlerror()) };
            return Err(format!(
                "{shown} ({by}) could not be opened: {}",
                why.unwrap_or_default()
            ));
        }
        Ok(Library { name: shown, handle })
    }

    /// The address of a function; NULL if there is none of that name.
    fn function(&self, name: &str) -> *mut c_void {
        CString::new(name).map_or(std::ptr::null_mut(), |name| {
            // SAFETY: an open library and a C string.
            unsafe { libc::dlsym(self.handle, name.as_ptr()) }
        })
    }

    /// A result's number and name.
    fn describe(&self, code: Code) -> String {
        // SAFETY: the function's type since CUDA 6.
        let get: Option<unsafe extern "C" fn(Code, *mut *const c_char) -> Code> =
            unsafe { std::mem::transmute(self.function("cuGetErrorName")) };
        get.map_or_else(
            || code.to_string(),
            |get| format!("{code} {}", name_of(code, get)),
        )
    }
}

/// `cuGetProcAddress` as it has been since CUDA 12.0, and as it was since 11.3.
type GetV2 = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_uint) -> Code;
type Get = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64) -> Code;

/// Finds entry points as the driver's version has them.
struct Lookup<'a> {
    library: &'a Library,
    version: c_int,
    get_v2: Option<GetV2>,
    get: Option<Get>,
}

impl Lookup<'_> {
    fn new(library: &Library, version: c_int) -> Lookup<'_> {
        let since = |least, name| match version >= least {
            true => library.function(name),
            false => std::ptr::null_mut(),
        };
        Lookup {
            library,
            version,
            // SAFETY: NULL, or the function of that name, whose documented type this is.
            get_v2: unsafe {
                std::mem::transmute::<*mut c_void, Option<GetV2>>(since(12000, "cuGetProcAddress_v2"))
            },
            // SAFETY: as above.
            get: unsafe { std::mem::transmute::<*mut c_void, Option<Get>>(since(11030, "cuGetProcAddress")) },
        }
    }

    fn find(&self, base: &str, exports: Exports) -> *mut c_void {
        let known = exports.iter().filter(|(since, _)| *since <= self.version);
        known
            .map(|&(since, exported)| {
                self.ask(base, since)
                    .unwrap_or_else(|| self.library.function(exported))
            })
            .find(|function| !function.is_null())
            .unwrap_or(std::ptr::null_mut())
    }

    fn ask(&self, base: &str, since: c_int) -> Option<*mut c_void> {
        let base = CString::new(base).ok()?;
        let mut function = std::ptr::null_mut();
        let flags = GET_PROC_ADDRESS_LEGACY_STREAM;
        let code = match (self.get_v2, self.get) {
            (Some(get), _) => {
                let mut status = 0;
                // SAFETY: a C string and variables of ours.
                unsafe { get(base.as_ptr(), &raw mut function, since, flags, &raw mut status) }
            }
            // SAFETY: as above.
            (None, Some(get)) => unsafe { get(base.as_ptr(), &raw mut function, since, flags) },
            (None, None) => return None,
        };
        (code == SUCCESS && !function.is_null()).then_some(function)
    }
}

fn name_of(code: Code, get: unsafe extern "C" fn(Code, *mut *const c_char) -> Code) -> String {
    let mut name = std::ptr::null();
    // SAFETY: the variable is ours; the driver gives static text, or NULL for a number that it does not know.
    let known = unsafe { get(code, &raw mut name) };
    // SAFETY: as above.
    let name = unsafe { text(name) }.filter(|_| known == SUCCESS);
    name.unwrap_or_else(|| "(a result without a name)".into())
}

/// # Safety
/// NULL or a C string.
unsafe fn text(text: *const c_char) -> Option<String> {
    // SAFETY: not NULL, and the caller promised the rest.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// Results that a context never recovers from, or that say that it is no more.
fn is_sticky(code: Code) -> bool {
    const STICKY: [CUresult; 12] = [
        CUresult::CUDA_ERROR_ECC_UNCORRECTABLE,
        CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE,
        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
        CUresult::CUDA_ERROR_LAUNCH_TIMEOUT,
        CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED,
        CUresult::CUDA_ERROR_ASSERT,
        CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR,
        CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION,
        CUresult::CUDA_ERROR_MISALIGNED_ADDRESS,
        CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE,
        CUresult::CUDA_ERROR_INVALID_PC,
        CUresult::CUDA_ERROR_LAUNCH_FAILED,
    ];
    STICKY.iter().any(|&sticky| sticky as Code == code) || LATER_STICKY.contains(&code)
}

impl Driver {
    /// How many devices there are.
    pub fn devices(&self) -> c_int {
        self.devices
    }

    /// The device of an ordinal that a program gave.
    pub(super) fn known_device(&self, ordinal: c_int) -> Result<CUdevice, BackendError> {
        if (0..self.devices).contains(&ordinal) {
            return self.device(ordinal);
        }
        Err(BackendError::NotSupported(format!(
            "device {ordinal} does not exist: this machine has {} (numbered from 0)",
            match self.devices {
                1 => "1 device".to_string(),
                devices => format!("{devices} devices"),
            }
        )))
    }

    /// Can `device` reach the memory of `owner`?
    pub(super) fn can_access(&self, device: CUdevice, owner: CUdevice) -> Result<bool, BackendError> {
        let mut can = 0;
        // SAFETY: the variable is ours.
        let code = unsafe { (self.symbols.device_can_access_peer)(&raw mut can, device, owner) };
        self.check("cuDeviceCanAccessPeer", code)?;
        Ok(can != 0)
    }

    /// The device of an ordinal.
    pub(super) fn device(&self, ordinal: c_int) -> Result<CUdevice, BackendError> {
        let mut device = 0;
        // SAFETY: the variable is ours.
        let code = unsafe { (self.symbols.device_get)(&raw mut device, ordinal) };
        self.check("cuDeviceGet", code)?;
        Ok(device)
    }

    /// The ordinal of a device.
    pub(super) fn ordinal(&self, device: CUdevice) -> Result<c_int, BackendError> {
        for ordinal in 0..self.devices {
            if self.device(ordinal)? == device {
                return Ok(ordinal);
            }
        }
        Err(BackendError::Other(format!("device {device:#x} has no ordinal")))
    }

    /// An attribute of a device; 0 if this driver does not know it.
    pub(super) fn attribute(&self, attribute: c_int, device: CUdevice) -> Result<c_int, BackendError> {
        const INVALID_VALUE: Code = CUresult::CUDA_ERROR_INVALID_VALUE as Code;
        let mut value = 0;
        // SAFETY: the variable is ours.
        match unsafe { (self.symbols.device_get_attribute)(&raw mut value, attribute, device) } {
            INVALID_VALUE => Ok(0),
            code => self.check("cuDeviceGetAttribute", code).map(|()| value),
        }
    }

    /// The version of CUDA that this driver is for, such as "12.4".
    pub(super) fn version(&self) -> String {
        dotted(self.version)
    }

    /// What the result of a call means.
    #[inline]
    pub(super) fn check(&self, call: &str, code: Code) -> Result<(), BackendError> {
        match code {
            SUCCESS => Ok(()),
            code => Err(self.error(call, code)),
        }
    }

    /// The error that a result stands for.
    #[cold]
    pub(super) fn error(&self, call: &str, code: Code) -> BackendError {
        const OUT_OF_MEMORY: Code = CUresult::CUDA_ERROR_OUT_OF_MEMORY as Code;
        const NOT_PERMITTED: Code = CUresult::CUDA_ERROR_NOT_PERMITTED as Code;
        const NOT_SUPPORTED: Code = CUresult::CUDA_ERROR_NOT_SUPPORTED as Code;
        const FIRST_OF_CAPTURE: Code = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED as Code;
        const LAST_OF_CAPTURE: Code = CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD as Code;
        if matches!(code, NOT_INITIALIZED | DEINITIALIZED) {
            set_gone();
            return BackendError::Unloaded;
        }
        let text = self.text(call, code);
        match code {
            OUT_OF_MEMORY => BackendError::OutOfMemory(text),
            code if is_sticky(code) => BackendError::Lost(text),
            NOT_PERMITTED | NOT_SUPPORTED => BackendError::NotSupported(text),
            FIRST_OF_CAPTURE..=LAST_OF_CAPTURE => BackendError::Capturing(text),
            _ => BackendError::Other(text),
        }
    }

    /// The same for a call that names a stream: that the driver does not know a handle is said of the stream.
    #[cold]
    pub(super) fn stream_error(&self, call: &str, code: Code) -> BackendError {
        const INVALID_VALUE: Code = CUresult::CUDA_ERROR_INVALID_VALUE as Code;
        const INVALID_HANDLE: Code = CUresult::CUDA_ERROR_INVALID_HANDLE as Code;
        match (self.error(call, code), code) {
            (BackendError::Other(why), INVALID_VALUE | INVALID_HANDLE) => BackendError::InvalidStream(why),
            (error, _) => error,
        }
    }

    /// A result in words: "cuMemMap: 1 CUDA_ERROR_INVALID_VALUE (invalid argument)".
    fn text(&self, call: &str, code: Code) -> String {
        format!(
            "{call}: {code} {} ({})",
            name_of(code, self.symbols.get_error_name),
            name_of(code, self.symbols.get_error_string)
        )
    }
}

/// Makes a call that gives something back or puts something right, once more if it fails: nobody would ask a third
/// time, and what is not given back now is gone until the process ends.
pub(super) fn insist(mut call: impl FnMut() -> Code) -> Code {
    match call() {
        SUCCESS => SUCCESS,
        code @ (NOT_INITIALIZED | DEINITIALIZED) => {
            set_gone();
            code
        }
        code if is_sticky(code) => code, // it would say the same again, or of something that is gone
        _ => call(),
    }
}
