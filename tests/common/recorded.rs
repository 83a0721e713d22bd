//! Recorded calls of programs.

use flate2::read::GzDecoder;
use std::fs::File;
use std::io::Read;

/// A block, and its bytes where it is allocated.
pub type Call = (usize, Option<u64>);

/// Those of a trace, by its path from the project's folder.
pub fn recorded(path: &str) -> Vec<Call> {
    let file = File::open(path).expect("a recorded trace");
    let mut text = String::new();
    GzDecoder::new(file).read_to_string(&mut text).expect("text");
    let call = |line: &str| {
        let mut words = line.split(' ');
        let alloc = words.next() == Some("a");
        let mut number = || words.next().and_then(|word| word.parse().ok()).expect("a number");
        (number() as usize, alloc.then(number))
    };
    text.lines().map(call).collect()
}
