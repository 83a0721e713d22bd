//! Unix sockets that keep the bounds of messages and carry descriptors, and the other system calls of sharing.
//!
//! Every descriptor that is made or received here closes on exec. Nothing keeps state or locks.

use crate::backend::{BackendError, process};
use std::io::Error;
use std::mem::{MaybeUninit, size_of, size_of_val};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

/// What the far end of a door is called, in the namespace of sockets that have no file; a number follows.
const DOOR: &[u8] = b"\0weir-pool-";
/// How long an answer may take. Whoever answers has nothing to wait for but its driver.
const PATIENCE_S: i64 = 20;

fn failed(call: &str) -> BackendError {
    let error = Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ENOMEM | libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ETOOMANYREFS) => {
            BackendError::OutOfMemory(format!("{call}: {error}"))
        }
        Some(libc::EAGAIN) => {
            BackendError::Other(format!("{call}: it takes too long, or the socket does not wait"))
        }
        _ => BackendError::Other(format!("{call}: {error}")),
    }
}

/// A connected socket.
#[derive(Debug)]
pub struct Socket {
    file: OwnedFd,
    /// Sending waits until there is room, and receiving until there is a message. Otherwise one receives only what is said to
    /// be there, and who lets its queue fill up, or takes away what it sent, is as good as gone.
    waits: bool,
}

impl From<Socket> for OwnedFd {
    fn from(socket: Socket) -> OwnedFd {
        socket.file
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

/// A message as it came.
#[derive(Debug)]
pub struct Received {
    /// Its bytes.
    pub length: usize,
    /// What it carried.
    pub files: Vec<OwnedFd>,
    /// It carried more, for which this process had no room.
    pub lost: bool,
}

/// Why some were lost.
pub fn no_room() -> BackendError {
    BackendError::OutOfMemory("recvmsg: this process can have no more descriptors (ulimit -n)".into())
}

/// Room for as many descriptors as the kernel lets a message carry; aligned as its headers must be.
#[repr(C, align(8))]
struct Control([MaybeUninit<u8>; 1040]);

impl Control {
    fn new() -> Control {
        Control([MaybeUninit::zeroed(); 1040])
    }
}

impl Socket {
    /// Two ends.
    pub fn pair() -> Result<(Socket, Socket), BackendError> {
        let mut ends = [0; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: an array of two.
        if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) } != 0 {
            return Err(failed("socketpair"));
        }
        // SAFETY: both were opened above and are nobody else's.
        let [one, two] = ends.map(|end| Socket::of(unsafe { OwnedFd::from_raw_fd(end) }));
        Ok((one, two))
    }

    /// A socket that somebody sent.
    pub fn of(file: OwnedFd) -> Socket {
        Socket { file, waits: false }
    }

    /// The near end of a door with this number, and the far end.
    pub fn door(number: [u64; 2]) -> Result<(Socket, Socket), BackendError> {
        let (near, far) = Socket::pair()?;
        let name = [DOOR, format!("{:016x}{:016x}", number[0], number[1]).as_bytes()].concat();
        // SAFETY: all zeros is an address.
        let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        for (place, byte) in address.sun_path.iter_mut().zip(&name) {
            *place = *byte as libc::c_char;
        }
        let length = size_of::<libc::sa_family_t>() + name.len();
        // SAFETY: an address of ours, of which `length` bytes are set.
        if unsafe { libc::bind(near.as_raw_fd(), (&raw const address).cast(), length as u32) } != 0 {
            return Err(failed("bind"));
        }
        Ok((near, far))
    }

    /// A descriptor of the program's own, if it leads to a door.
    pub fn through(file: BorrowedFd<'_>) -> Result<Option<Socket>, BackendError> {
        // SAFETY: all zeros is an address.
        let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
        let mut length = size_of_val(&address) as u32;
        // SAFETY: variables of ours, and their length.
        let code = unsafe { libc::getpeername(file.as_raw_fd(), (&raw mut address).cast(), &raw mut length) };
        let named = address
            .sun_path
            .iter()
            .zip(DOOR)
            .all(|(&is, &want)| is as u8 == want);
        if code != 0 || address.sun_family != libc::AF_UNIX as libc::sa_family_t || !named {
            return Ok(None);
        }
        let file = own(file)?;
        Ok(Some(Socket { file, waits: true }))
    }

    /// The same socket, where sending and receiving wait, but not for ever.
    pub fn that_waits(self) -> Result<Socket, BackendError> {
        let time = libc::timeval {
            tv_sec: PATIENCE_S,
            tv_usec: 0,
        };
        for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
            // SAFETY: a variable of ours, and its length.
            let code = unsafe {
                libc::setsockopt(
                    self.as_raw_fd(),
                    libc::SOL_SOCKET,
                    option,
                    (&raw const time).cast(),
                    size_of_val(&time) as u32,
                )
            };
            if code != 0 {
                return Err(failed("setsockopt"));
            }
        }
        Ok(Socket { waits: true, ..self })
    }

    /// Nothing goes in or out any more, at both ends. Closing does that only with the last copy, and a forked child has copies, which
    /// are its parent's to shut down.
    pub fn shut_down(&self) {
        if process::forked() {
            return;
        }
        // SAFETY: no memory is touched. It fails where it has been done.
        unsafe { libc::shutdown(self.as_raw_fd(), libc::SHUT_RDWR) };
    }

    /// Sends one message. False: the other end is closed.
    pub fn send(&self, bytes: &[u8], files: &[&OwnedFd]) -> Result<bool, BackendError> {
        let mut part = libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        let mut control = Control::new();
        // SAFETY: all zeros is a header without anything.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
        if !files.is_empty() {
            let length = size_of_val(files) / size_of::<&OwnedFd>() * size_of::<RawFd>();
            header.msg_control = control.0.as_mut_ptr().cast();
            // SAFETY: arithmetic alone.
            header.msg_controllen = unsafe { libc::CMSG_SPACE(length as u32) } as _;
            assert!(header.msg_controllen as usize <= control.0.len());
            // SAFETY: the control buffer has room for one header and these descriptors, as asserted.
            unsafe {
                let first = libc::CMSG_FIRSTHDR(&raw const header);
                (*first).cmsg_level = libc::SOL_SOCKET;
                (*first).cmsg_type = libc::SCM_RIGHTS;
                (*first).cmsg_len = libc::CMSG_LEN(length as u32) as _;
                let data = libc::CMSG_DATA(first).cast::<RawFd>();
                for (n, file) in files.iter().enumerate() {
                    data.add(n).write_unaligned(file.as_raw_fd());
                }
            }
        }
        let flags = libc::MSG_NOSIGNAL | if self.waits { 0 } else { libc::MSG_DONTWAIT };
        loop {
            // SAFETY: a header whose parts live until the call returns.
            if unsafe { libc::sendmsg(self.as_raw_fd(), &raw const header, flags) } >= 0 {
                return Ok(true);
            }
            match Error::last_os_error().raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EPIPE | libc::ECONNRESET) => return Ok(false),
                _ => return Err(failed("sendmsg")),
            }
        }
    }

    /// Receives one message. None: the other end is closed. A message of more than these bytes counts as empty.
    pub fn receive(&self, bytes: &mut [u8]) -> Result<Option<Received>, BackendError> {
        let mut part = libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        };
        let mut control = Control::new();
        // SAFETY: all zeros is a header without anything.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
        header.msg_control = control.0.as_mut_ptr().cast();
        header.msg_controllen = control.0.len() as _;
        let flags = libc::MSG_CMSG_CLOEXEC | if self.waits { 0 } else { libc::MSG_DONTWAIT };
        let length = loop {
            // SAFETY: a header whose parts live until the call returns.
            let got = unsafe { libc::recvmsg(self.as_raw_fd(), &raw mut header, flags) };
            match usize::try_from(got) {
                Ok(length) => break length,
                Err(_) => match Error::last_os_error().raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::ECONNRESET) => return Ok(None),
                    _ => return Err(failed("recvmsg")),
                },
            }
        };
        let mut files = Vec::new();
        // SAFETY: the kernel has filled the header and the control buffer; each descriptor in it is new and ours.
        unsafe {
            let mut next = libc::CMSG_FIRSTHDR(&raw const header);
            while !next.is_null() {
                if (*next).cmsg_level == libc::SOL_SOCKET && (*next).cmsg_type == libc::SCM_RIGHTS {
                    let count = ((*next).cmsg_len as usize - libc::CMSG_LEN(0) as usize) / size_of::<RawFd>();
                    let data = libc::CMSG_DATA(next).cast::<RawFd>();
                    files.extend((0..count).map(|n| OwnedFd::from_raw_fd(data.add(n).read_unaligned())));
                }
                next = libc::CMSG_NXTHDR(&raw const header, next);
            }
        }
        if length == 0 && files.is_empty() {
            return Ok(None);
        }
        let is = |flag| header.msg_flags & flag != 0;
        Ok(Some(Received {
            length: if is(libc::MSG_TRUNC) { 0 } else { length },
            files,
            lost: is(libc::MSG_CTRUNC),
        }))
    }

    /// The process at the other end, as something to wait for: it becomes readable once that process has ended, with all
    /// that it held. None where the system does not tell.
    pub fn peer(&self) -> Option<OwnedFd> {
        const SO_PEERPIDFD: libc::c_int = 77; // Linux 6.5
        let mut file: RawFd = -1;
        if self.option(SO_PEERPIDFD, &mut file) && file >= 0 {
            // SAFETY: the kernel has opened it for us.
            return Some(unsafe { OwnedFd::from_raw_fd(file) });
        }
        let mut who = libc::ucred {
            pid: 0,
            uid: 0,
            gid: 0,
        };
        if !self.option(libc::SO_PEERCRED, &mut who) || who.pid <= 0 {
            return None;
        }
        // SAFETY: no precondition.
        let file = unsafe { libc::syscall(libc::SYS_pidfd_open, who.pid, 0) };
        // SAFETY: opened above and nobody else's.
        (file >= 0).then(|| unsafe { OwnedFd::from_raw_fd(file as RawFd) })
    }

    /// Reads an option of the socket; false if there is none, or it is of another size.
    fn option<T: Copy>(&self, option: libc::c_int, value: &mut T) -> bool {
        let mut length = size_of::<T>() as u32;
        let place = ptr::from_mut(value).cast();
        // SAFETY: a variable of the caller's that may have any bytes (numbers), and its length.
        let code =
            unsafe { libc::getsockopt(self.as_raw_fd(), libc::SOL_SOCKET, option, place, &raw mut length) };
        code == 0 && length as usize == size_of::<T>()
    }
}

/// What one waits for in a descriptor, and whether it has happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// There is something to read.
    pub readable: bool,
    /// The other end is closed, or shut down: nothing more will come.
    pub closed: bool,
    /// There is no such descriptor: somebody else in the process has closed it.
    pub lost: bool,
}

/// What is ready of these descriptors; a negative one stands for nothing. Unless told to look only, waits until
/// something is.
pub fn wait(files: &[RawFd], look: bool) -> Vec<Ready> {
    let mut all: Vec<libc::pollfd> = files
        .iter()
        .map(|&fd| libc::pollfd {
            fd,
            events: libc::POLLIN | libc::POLLRDHUP,
            revents: 0,
        })
        .collect();
    // SAFETY: an array of ours, and its length. An error, such as a signal's, leaves nothing ready.
    unsafe {
        libc::poll(
            all.as_mut_ptr(),
            all.len() as libc::nfds_t,
            if look { 0 } else { -1 },
        )
    };
    all.iter()
        .map(|one| Ready {
            readable: one.revents & libc::POLLIN != 0,
            closed: one.revents & (libc::POLLHUP | libc::POLLRDHUP | libc::POLLERR) != 0,
            lost: one.revents & libc::POLLNVAL != 0,
        })
        .collect()
}

/// A number that nobody else has.
pub fn unique() -> Result<[u64; 2], BackendError> {
    let mut number = [0u64; 2];
    let length = size_of_val(&number);
    // SAFETY: a variable of ours, and its length.
    let got = unsafe { libc::getrandom(ptr::from_mut(&mut number).cast(), length, 0) };
    match got as usize == length {
        true => Ok(number),
        false => Err(failed("getrandom")),
    }
}

/// Sends a descriptor through a socket of the program's.
pub fn send_descriptor(socket: BorrowedFd<'_>, file: BorrowedFd<'_>) -> Result<(), BackendError> {
    let (socket, file) = (of_program(socket)?, own(file)?);
    // a byte must go with it, or a stream socket delivers nothing
    match socket.send(b"w", &[&file])? {
        true => Ok(()),
        false => Err(BackendError::Other(
            "sendmsg: the other end of the socket is closed".into(),
        )),
    }
}

/// Receives one that [`send_descriptor`] sent. None: the other end is closed, or what came was something else.
pub fn receive_descriptor(socket: BorrowedFd<'_>) -> Result<Option<OwnedFd>, BackendError> {
    match of_program(socket)?.receive(&mut [0])? {
        Some(Received { lost: true, .. }) => Err(no_room()),
        Some(Received { mut files, .. }) if files.len() == 1 => Ok(files.pop()),
        _ => Ok(None),
    }
}

/// It waits, unless the program has told it not to.
fn of_program(socket: BorrowedFd<'_>) -> Result<Socket, BackendError> {
    own(socket).map(|file| Socket { file, waits: true })
}

fn own(file: BorrowedFd<'_>) -> Result<OwnedFd, BackendError> {
    file.try_clone_to_owned()
        .map_err(|error| BackendError::Other(format!("descriptor {}: {error}", file.as_raw_fd())))
}
