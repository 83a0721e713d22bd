//! Rounds of one stream or several, and who plays them on a pool beside its model (`run`), alone or with guests on another stream.

use super::op::Setup;
use super::random::Random;
use super::run::Run;
use super::{K, M};

/// A call of a round, and which of its blocks it is about.
#[derive(Clone, Copy)]
pub enum Call {
    Alloc(usize),
    Free(usize),
    /// The one that came in the round before.
    FreeLast(usize),
}

/// A round: what is allocated is freed in it.
pub struct Round {
    pub asked: Vec<u64>,
    pub calls: Vec<Call>,
    /// The streams that each block is allocated and freed on.
    pub on: Vec<(u8, u8)>,
}

pub fn asked(random: &mut Random) -> u64 {
    match random.below(8) {
        0..3 => random.below(32 * K),
        3..5 => 32 * K + random.below(224 * K),
        5..7 => 256 * K + random.below(4 * M),
        _ => random.below(24 * M),
    }
}

impl Round {
    /// Of one stream.
    pub fn of(asked: Vec<u64>, calls: Vec<Call>) -> Round {
        let on = vec![(0, 0); asked.len()];
        Round { asked, calls, on }
    }

    /// The same where each block is one of so many streams', and some are freed on another one.
    pub fn of_several(random: &mut Random, blocks: usize, most: usize, streams: u64) -> Round {
        let mut round = Round::new(random, blocks, most);
        for (on, &asked) in round.on.iter_mut().zip(&round.asked) {
            let stream = random.below(streams) as u8;
            let elsewhere = asked > 32 * K && random.one_in(8);
            *on = (
                stream,
                if elsewhere {
                    random.below(streams) as u8
                } else {
                    stream
                },
            );
        }
        round
    }

    pub fn new(random: &mut Random, blocks: usize, most: usize) -> Round {
        let asked: Vec<u64> = (0..blocks).map(|_| asked(random)).collect();
        let (mut calls, mut live) = (Vec::new(), Vec::new());
        for block in 0..blocks {
            // the first one stays to the end, so that the round begins at one place only
            while live.len() >= most || live.len() > 1 && random.one_in(3) {
                let index = 1 + random.below(live.len() as u64 - 1) as usize;
                calls.push(Call::Free(live.swap_remove(index)));
            }
            calls.push(Call::Alloc(block));
            live.push(block);
        }
        calls.extend(live.into_iter().map(Call::Free));
        Round::of(asked, calls)
    }

    /// The same where so many blocks last until a moment after they came again, as those do of which there are two.
    pub fn overlapping(random: &mut Random, blocks: usize, most: usize, lasting: usize) -> Round {
        let mut round = Round::new(random, blocks, most);
        for asked in &mut round.asked {
            *asked = match random.below(8) {
                0..3 => 1 << (8 + random.below(8)),
                _ => (1 + random.below(6)) * M,
            };
        }
        for call in round.calls.iter_mut().rev().take(lasting) {
            let Call::Free(block) = *call else {
                unreachable!("all that is left")
            };
            *call = Call::FreeLast(block);
        }
        let from = round.calls.len() - lasting;
        for call in round.calls.split_off(from) {
            let came = |other: &Call| matches!((other, call), (Call::Alloc(a), Call::FreeLast(b)) if *a == b);
            let at = round.calls.iter().position(came).expect("it came") as u64 + 1;
            let at = at + random.below(round.calls.len() as u64 + 1 - at);
            round.calls.insert(at as usize, call);
        }
        round
    }
}

/// Where the blocks of a round are.
pub struct Player {
    pub at: Vec<u64>,
    pub last: Vec<u64>,
    /// Some calls of a kind are made as batches, not always the same ones.
    pub batches: Option<Random>,
    /// Some blocks are freed when all their use is over, not always the same ones.
    pub synced: Option<Random>,
    /// Whose cache it uses.
    pub thread: usize,
    /// Calls of a turn: another thread makes the next ones.
    pub turn: Option<usize>,
    /// Another stream calls between, now and then.
    pub guest: Option<Guest>,
}

/// A stream that has a few blocks of a length or two, which the round's stream and copies use, too, or not.
pub struct Guest {
    pub random: Random,
    /// One call of the round in so many is followed by one of the guest's.
    pub every: u64,
    pub asked: Vec<u64>,
    /// Blocks that it has at most.
    pub most: usize,
    live: Vec<u64>,
}

/// Its stream.
pub const GUEST: u8 = 1;

impl Guest {
    /// Of one or two lengths, short ones or any.
    pub fn new(seed: u64, every: u64, short: bool) -> Guest {
        let mut random = Random(seed);
        let mut one = || match short {
            true => random.below(600 * K),
            false => asked(&mut random),
        };
        let asked = vec![one(), one()];
        let most = 1 + random.below(3) as usize;
        Guest {
            random,
            every,
            asked,
            most,
            live: Vec::new(),
        }
    }

    fn call(&mut self, run: &mut Run) {
        if !self.random.one_in(self.every) {
            return;
        }
        if self.live.len() < self.most && self.random.one_in(2) {
            let asked = self.asked[self.random.below(self.asked.len() as u64) as usize];
            let at = run.alloc_quietly_on(asked, GUEST);
            match self.random.below(5) {
                0 => {}
                how => {
                    if how == 1 {
                        run.copy_quietly(at, GUEST);
                    }
                    run.share_quietly(at, 0, how == 2);
                }
            }
            self.live.push(at);
        } else if !self.live.is_empty() {
            let index = self.random.below(self.live.len() as u64) as usize;
            run.free_quietly_on(self.live.swap_remove(index), GUEST);
        }
    }
}

impl Player {
    pub fn new(round: &Round) -> Player {
        Player {
            at: vec![0; round.asked.len()],
            last: vec![0; round.asked.len()],
            batches: None,
            synced: None,
            thread: 0,
            turn: None,
            guest: None,
        }
    }

    pub fn play(&mut self, run: &mut Run, round: &Round, calls: std::ops::Range<usize>) {
        let end = calls.end;
        let mut left = &round.calls[calls];
        while let Some(&first) = left.first() {
            let made = end - left.len();
            run.thread = self.turn.map_or(self.thread, |turn| made / turn % 2);
            let kind = |call: &Call| match *call {
                Call::Alloc(block) => (true, round.on[block]),
                Call::Free(block) | Call::FreeLast(block) => (false, round.on[block]),
            };
            let alike = left.iter().take_while(|&call| kind(call) == kind(&first)).count();
            let (is_alloc, (from, to)) = kind(&first);
            let stream = if is_alloc { from } else { to };
            let most = self
                .batches
                .as_mut()
                .map_or(1, |random| 1 + random.below(8) as usize);
            if let Some(guest) = &mut self.guest {
                guest.call(run);
            }
            let part;
            (part, left) = left.split_at(alike.min(most));
            match part.len() {
                _ if from != to && !is_alloc => self.play_singly(run, round, part),
                1 => self.play_singly(run, round, part),
                _ => self.play_batch(run, round, part, stream),
            }
        }
    }

    /// Calls of a kind.
    fn play_batch(&mut self, run: &mut Run, round: &Round, calls: &[Call], stream: u8) {
        let (mut asked, mut came, mut go) = (Vec::new(), Vec::new(), Vec::new());
        for &call in calls {
            match call {
                Call::Alloc(block) => {
                    asked.push(round.asked[block]);
                    came.push(block);
                }
                Call::FreeLast(block) => go.push(self.last[block]),
                Call::Free(block) if run.has(self.at[block], round.asked[block]) => go.push(self.at[block]),
                Call::Free(_) => {}
            }
        }
        if came.is_empty() {
            return run.free_batch_quietly(&go, stream);
        }
        for (block, at) in came.into_iter().zip(run.alloc_batch_quietly(&asked, stream)) {
            self.last[block] = self.at[block];
            self.at[block] = at;
        }
    }

    fn play_singly(&mut self, run: &mut Run, round: &Round, calls: &[Call]) {
        for &call in calls {
            match call {
                Call::Alloc(block) => {
                    self.last[block] = self.at[block];
                    self.at[block] = run.alloc_quietly_on(round.asked[block], round.on[block].0);
                }
                Call::FreeLast(block) if self.last[block] != 0 => {
                    run.free_quietly_elsewhere(self.last[block], round.on[block])
                }
                // something else may have freed it, and got its place
                Call::Free(block) if run.has(self.at[block], round.asked[block]) => {
                    match self.synced.as_mut().is_some_and(|random| random.one_in(3)) {
                        true => run.free_synced_quietly(self.at[block], round.on[block].0),
                        false => run.free_quietly_elsewhere(self.at[block], round.on[block]),
                    }
                }
                Call::Free(_) | Call::FreeLast(_) => {}
            }
        }
    }
}

pub fn setup() -> Setup {
    setup_of(true)
}

/// All calls from the first one on are a round only where that is said.
pub fn setup_of(declared: bool) -> Setup {
    Setup {
        declared,
        first_has_cache: false,
        ..Setup::default()
    }
}

/// A pool, a round of 300 calls with up to 24 blocks in use, and who plays it.
pub fn ready(declared: bool, random: &mut Random) -> (Run, Round, Player) {
    let round = Round::new(random, 150, 24);
    let player = Player::new(&round);
    (Run::new(&setup_of(declared)), round, player)
}

/// Plays until the pool answers from the tape.
pub fn learn(run: &mut Run, player: &mut Player, round: &Round) -> bool {
    (0..100).any(|_| {
        player.play(run, round, 0..round.calls.len());
        run.pool.is_replaying()
    })
}
