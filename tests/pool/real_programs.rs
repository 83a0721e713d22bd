//! A long random program on real memory and real streams: each block is written when it comes and looked at
//! when it goes, on whatever stream it goes, and one look too late shows.

use crate::common::M;
use crate::common::limited;
use crate::common::random::Random;
use crate::common::real::{Recorded, Stream, Wrong, alone, end, pool, synchronize};
use std::time::Duration;
use weir::base::error::Error;
use weir::base::units::Addr;
use weir::pool::Attribute;

const STEPS: u64 = 200_000;
const STREAMS: u64 = 5;

struct Block {
    at: Addr,
    bytes: u64,
    value: u64,
    stream: usize,
}

#[test]
fn two_hundred_thousand_steps_on_real_memory() {
    let _alone = alone();
    let (pool, faulty) = pool(limited(40 * M));
    let (mut random, wrong, mut refused) = (Random(42), Wrong::default(), 0);
    let mut streams: Vec<Stream> = (0..STREAMS).map(|_| Stream::new()).collect();
    let mut blocks: Vec<Block> = Vec::new();
    for step in 0..STEPS {
        let (stream, other) = (random.below(STREAMS) as usize, random.below(STREAMS) as usize);
        match random.below(1000) {
            0..2 => drop(pool.squeeze().expect("a squeeze")),
            2..6 => pool.trim(random.log_uniform(27)).expect("a trim"),
            6..16 => synchronize(&pool, &streams[stream]),
            16..30 => streams[stream].delay(Duration::from_micros(random.below(100))),
            30..32 => {
                let bits = random.next();
                for (bit, switch) in [
                    Attribute::ReuseFollowEventDependencies,
                    Attribute::ReuseAllowOpportunistic,
                    Attribute::ReuseAllowInternalDependencies,
                ]
                .into_iter()
                .enumerate()
                {
                    pool.set_attribute(switch, bits >> bit & 1).expect("a switch");
                }
            }
            32..34 => {
                // its blocks go first; what was freed on it outlives it
                for block in blocks.extract_if(.., |block| block.stream == stream) {
                    streams[stream].expect(block.at, block.bytes, block.value, &wrong);
                    pool.free(block.at, streams[stream].0).expect("a live block");
                }
                streams[stream] = Stream::new();
            }
            34..40 => pool.validate(),
            40..540 if blocks.len() < 200 => {
                let bytes = match random.below(16) {
                    0..10 => random.log_uniform(15),
                    10..15 => random.log_uniform(20),
                    _ => random.log_uniform(24),
                };
                match pool.alloc(bytes, 0, streams[stream].0) {
                    Ok(at) => {
                        streams[stream].write(at, bytes, step);
                        blocks.push(Block {
                            at,
                            bytes,
                            value: step,
                            stream,
                        });
                    }
                    Err(Error::OutOfMemory(_)) => refused += 1,
                    Err(error) => panic!("{error:?}"),
                }
            }
            kind if !blocks.is_empty() => {
                let block = blocks.swap_remove(random.below(blocks.len() as u64) as usize);
                let (home, away) = (&streams[block.stream], &streams[other]);
                if kind < 700 && block.stream != other {
                    // the other stream goes on with it
                    Recorded::on(&pool, home).waited_for_by(&pool, away);
                    away.expect(block.at, block.bytes, block.value, &wrong);
                    if kind % 2 == 0 {
                        pool.free(block.at, away.0).expect("a live block");
                    } else {
                        pool.record_stream(block.at, away.0).expect("a live block");
                        pool.free(block.at, home.0).expect("a live block");
                    }
                } else {
                    home.expect(block.at, block.bytes, block.value, &wrong);
                    pool.free(block.at, home.0).expect("a live block");
                }
            }
            _ => {}
        }
    }
    for block in blocks {
        streams[block.stream].expect(block.at, block.bytes, block.value, &wrong);
        pool.free(block.at, streams[block.stream].0)
            .expect("a live block");
    }
    streams.iter().for_each(Stream::synchronize);
    assert_eq!(wrong.count(), 0, "memory was handed out while it was in use");
    assert!(refused > 0 && faulty.peak_created_bytes() <= 40 * M);
    end(pool, &faulty);
}
