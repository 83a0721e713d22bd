//! How two processes speak about shared memory: through Unix sockets that keep the bounds of messages and carry
//! descriptors.
//!
//! A pool that exports has a *door*, one end of a pair of sockets; the other end is the descriptor that the program gives
//! to other processes, any number of them. A process that imports makes a pair of its own and sends one end through the
//! door: that pair is the *line* between the two, and what is asked and answered on it concerns nobody else. The line
//! tells the exporter also when the importer is gone, however it ended.
//!
//! A message is words of 64 bits, and descriptors. The first word says what it is:
//!
//! | message | from | words after it |
//! |---|---|---|
//! | `HELLO` | importer, through the door, with the line's other end | `VERSION` |
//! | `WELCOME` | exporter | `VERSION`, kind of memory, the pool's number (2), the device's number (2) |
//! | `BORROW` | importer | address and number of the block |
//! | `LENT` | exporter | count of pages, offset, bytes |
//! | `FETCH` | importer, after `LENT`, until it has all | |
//! | `PAGES` | exporter, with a descriptor for each of the next pages | bytes of each |
//! | `RETURN` | importer | address and number of the block; not answered |
//! | `EVENT` | importer | handle and number of the event |
//! | `HERE` | exporter, with the event's descriptor | |
//! | `GONE` | exporter | |
//! | `FAILED` | exporter | the text, as bytes |
//!
//! The importer asks for one `PAGES` after the other, because the kernel lets few descriptors be under way at once.
//!
//! Locks: none.

pub mod socket;
pub mod token;

use super::BackendError;
use socket::Socket;
use std::os::fd::OwnedFd;

/// Of these messages; both sides must be of the same.
pub const VERSION: u64 = 1;
/// Blocks begin at multiples of this.
pub const ALIGN: u64 = 256;
/// Descriptors that a message carries at most; the kernel's limit is 253.
pub const MOST: usize = 128;

/// A message's first word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
#[allow(missing_docs)] // the table above
pub enum Kind {
    Hello = 0x7765_6972_0001,
    Welcome,
    Borrow,
    Lent,
    Fetch,
    Pages,
    Return,
    Event,
    Here,
    Gone,
    Failed,
}

impl Kind {
    const ALL: [Kind; 11] = [
        Kind::Hello,
        Kind::Welcome,
        Kind::Borrow,
        Kind::Lent,
        Kind::Fetch,
        Kind::Pages,
        Kind::Return,
        Kind::Event,
        Kind::Here,
        Kind::Gone,
        Kind::Failed,
    ];
}

/// A message as it was received.
#[derive(Debug)]
pub struct Message {
    /// What it is.
    pub kind: Kind,
    /// What follows.
    pub words: Vec<u64>,
    /// What it carried.
    pub files: Vec<OwnedFd>,
    /// It carried more, for which this process had no room.
    pub lost: bool,
}

impl Message {
    /// A text that was sent as words.
    pub fn text(&self) -> String {
        let bytes: Vec<u8> = self.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    }
}

/// What an exporter says of its pool first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// What the memory is, by a number of the exporter's layer.
    pub memory: u64,
    /// The pool's number, which no other has.
    pub pool: [u64; 2],
    /// The device's number, the same in every process.
    pub device: [u64; 2],
}

impl Welcome {
    /// As a message's words.
    pub fn words(self) -> [u64; 6] {
        let Welcome { memory, pool, device } = self;
        [VERSION, memory, pool[0], pool[1], device[0], device[1]]
    }

    /// From a message. None: it is another one, or another version's.
    pub fn read(message: &Message) -> Option<Welcome> {
        match (message.kind, &message.words[..]) {
            (Kind::Welcome, &[VERSION, memory, p0, p1, d0, d1]) => Some(Welcome {
                memory,
                pool: [p0, p1],
                device: [d0, d1],
            }),
            _ => None,
        }
    }
}

/// A text as words; a long one is cut.
pub fn words_of(text: &str) -> Vec<u64> {
    let chunks = text.as_bytes()[..text.len().min(8 * MOST)].chunks(8);
    let word = |chunk: &[u8]| {
        let mut bytes = [0; 8];
        bytes[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(bytes)
    };
    chunks.map(word).collect()
}

/// Sends a message. False: the other side is gone.
pub fn send(socket: &Socket, kind: Kind, words: &[u64], files: &[&OwnedFd]) -> Result<bool, BackendError> {
    let all = std::iter::once(kind as u64).chain(words.iter().copied());
    let bytes: Vec<u8> = all.flat_map(u64::to_le_bytes).collect();
    socket.send(&bytes, files)
}

/// Receives a message. None: the other side is gone, or has said something that no weir of this version says.
pub fn receive(socket: &Socket) -> Result<Option<Message>, BackendError> {
    let mut bytes = [0; 8 * (MOST + 1)];
    let Some(got) = socket.receive(&mut bytes)? else {
        return Ok(None);
    };
    let mut words = bytes[..got.length]
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
    let first = words.next();
    let kind = Kind::ALL.into_iter().find(|&kind| Some(kind as u64) == first);
    Ok(kind.map(|kind| Message {
        kind,
        words: words.collect(),
        files: got.files,
        lost: got.lost,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_whole_with_their_descriptors() {
        let (here, there) = Socket::pair().unwrap();
        let (one, two) = Socket::pair().unwrap();
        send(&here, Kind::Pages, &[7, u64::MAX], &[&one.into(), &two.into()]).unwrap();
        send(&here, Kind::Failed, &words_of("no such thing"), &[]).unwrap();
        let pages = receive(&there).unwrap().unwrap();
        assert_eq!(
            (pages.kind, &pages.words[..], pages.files.len()),
            (Kind::Pages, &[7, u64::MAX][..], 2)
        );
        let failed = receive(&there).unwrap().unwrap();
        assert_eq!(
            (failed.kind, failed.text().as_str()),
            (Kind::Failed, "no such thing")
        );
        here.send(b"something else", &[]).unwrap();
        assert!(receive(&there).unwrap().is_none());
        drop(here);
        assert!(receive(&there).unwrap().is_none());
        assert!(!send(&there, Kind::Gone, &[], &[]).unwrap());
    }

    #[test]
    fn as_many_descriptors_as_a_message_may_have() {
        let (here, there) = Socket::pair().unwrap();
        let file: OwnedFd = Socket::pair().unwrap().0.into();
        send(&here, Kind::Pages, &[1; MOST], &[&file; MOST]).unwrap();
        assert_eq!(receive(&there).unwrap().unwrap().files.len(), MOST);
    }
}
