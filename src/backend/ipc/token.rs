//! Tokens: what one process gives to another, by any means, so that it can name a block or an event of the first one.
//!
//! ```text
//! what it is (1) | the pool's number (2) | address or handle (1) | number (1) | bytes (1) | the driver's own (8) | check (1)
//! ```
//!
//! The check tells a token from other bytes; it keeps nobody from making one up, which the descriptor does.

/// Bytes of a token, with room for what a later version may have to say.
pub const BYTES: usize = 128;
const WORDS: usize = BYTES / 8;

/// What a token names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum What {
    /// A block.
    Block = u64::from_le_bytes(*b"weir blk"),
    /// An event.
    Event = u64::from_le_bytes(*b"weir evt"),
}

/// A token's meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// What it names.
    pub what: What,
    /// The number of the pool, which no other has.
    pub pool: [u64; 2],
    /// The exporter's address or handle of it.
    pub at: u64,
    /// The number under which it is offered.
    pub number: u64,
    /// Bytes, of a block.
    pub bytes: u64,
    /// What the driver wants to know, of an event.
    pub driver: [u64; 8],
}

/// FNV-1a (Fowler, Noll, Vo), by words.
fn check(words: &[u64]) -> u64 {
    words.iter().fold(0xcbf2_9ce4_8422_2325, |sum, word| {
        (sum ^ word).wrapping_mul(0x100_0000_01b3)
    })
}

impl Token {
    /// As bytes.
    pub fn bytes(&self) -> [u8; BYTES] {
        let mut words = [0; WORDS];
        words[0] = self.what as u64;
        words[1..3].copy_from_slice(&self.pool);
        words[3..6].copy_from_slice(&[self.at, self.number, self.bytes]);
        words[6..14].copy_from_slice(&self.driver);
        words[WORDS - 1] = check(&words[..WORDS - 1]);
        let mut bytes = [0; BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// From bytes. None: they are no token of this kind.
    pub fn read(bytes: &[u8; BYTES], what: What) -> Option<Token> {
        let mut words = [0; WORDS];
        for (word, place) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(place.try_into().ok()?);
        }
        let right = words[0] == what as u64 && words[WORDS - 1] == check(&words[..WORDS - 1]);
        right.then(|| Token {
            what,
            pool: [words[1], words[2]],
            at: words[3],
            number: words[4],
            bytes: words[5],
            driver: words[6..14].try_into().expect("eight words"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_arrives_and_a_damaged_one_does_not() {
        let token = Token {
            what: What::Block,
            pool: [1, 2],
            at: 3,
            number: 4,
            bytes: 5,
            driver: [6, 7, 8, 9, 10, 11, 12, 13],
        };
        let bytes = token.bytes();
        assert_eq!(Token::read(&bytes, What::Block), Some(token));
        assert_eq!(Token::read(&bytes, What::Event), None);
        for at in 0..BYTES {
            let mut damaged = bytes;
            damaged[at] ^= 4;
            assert_eq!(Token::read(&damaged, What::Block), None, "byte {at}");
        }
        assert_eq!(Token::read(&[0; BYTES], What::Block), None);
    }
}
