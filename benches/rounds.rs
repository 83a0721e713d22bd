//! How soon programs that do the same again come to rounds that make no page call, what they hold then, and which calls are
//! left. The programs are those of `tests/pool/rounds.rs`, and one whose streams keep step, with other seeds.
//!
//! `cargo bench --bench rounds -- [--from SEED] [--to SEED] [--rounds N] [--untold] [--work MICROSECONDS]
//! [--only PROGRAM]`; untold: the pool does
//! not hear that the program waits for its streams after each round, as where that is CUDA's own call; work: so much is queued on a
//! block's stream each time, and the host goes on after one microsecond, in virtual time.

#[path = "../tests/common/device.rs"]
mod device;
#[allow(dead_code)]
#[path = "../tests/common/random.rs"]
mod random;
#[path = "../tests/common/rounds.rs"]
mod rounds;

use random::Random;
use rounds::{Rig, lockstep, pipeline, powers, rings, tails, vectors};

type Program = fn(&mut Rig, &mut Random);

const PROGRAMS: [(&str, Program); 6] = [
    ("powers", powers),
    ("vectors", vectors),
    ("pipeline", pipeline),
    ("rings", rings),
    ("tails", tails),
    ("lockstep", lockstep),
];

/// What came out for one seed.
struct Outcome {
    /// The last round with a page call.
    last: usize,
    page_calls: u64,
    /// In the last round.
    events: u64,
    /// Of virtual time in the last round, each request.
    micros: f64,
    held: f64,
    apart: f64,
}

fn run(
    program: Program,
    (streams, declared): (usize, bool),
    seed: u64,
    rounds: usize,
    tells: bool,
    work: u64,
) -> Outcome {
    let mut rig = match work {
        0 => Rig::new(streams, declared),
        micros => Rig::busy(streams, declared, micros * 1000, seed),
    };
    rig.tells = tells;
    let (mut counts, _) = rig.rounds(rounds - 1, program, seed);
    let before = rig.pool.stats().expect("stats");
    let begun = rig.micros();
    let (last, held) = rig.rounds(1, program, seed);
    counts.extend(last);
    let micros = rig.micros() - begun;
    let after = rig.pool.stats().expect("stats");
    Outcome {
        last: counts
            .iter()
            .rposition(|&calls| calls > 0)
            .map_or(0, |last| last + 1),
        page_calls: counts.iter().sum(),
        events: after.event_calls - before.event_calls,
        micros: micros / (after.allocations - before.allocations) as f64,
        held,
        apart: rig.apart(),
    }
}

fn print(name: &str, streams: &str, declared: &str, outcomes: &[Outcome]) {
    let count = outcomes.len() as f64;
    let mean = |of: fn(&Outcome) -> f64| outcomes.iter().map(of).sum::<f64>() / count;
    let most = |of: fn(&Outcome) -> f64| outcomes.iter().map(of).fold(0.0, f64::max);
    println!(
        "{name:<9} {streams:>7} {declared:>8} {count:>8} {:>10.1} {:>4} {:>10.0} {:>10.1} {:>6.2} {:>10.4} {:>6.3} {:>6} {:>10.2}",
        mean(|outcome| outcome.last as f64),
        most(|outcome| outcome.last as f64),
        mean(|outcome| outcome.page_calls as f64),
        mean(|outcome| outcome.events as f64),
        mean(|outcome| outcome.micros),
        mean(|outcome| outcome.held),
        most(|outcome| outcome.held),
        outcomes.iter().filter(|outcome| outcome.held > 1.03).count(),
        outcomes
            .iter()
            .map(|outcome| outcome.apart)
            .fold(f64::INFINITY, f64::min),
    );
}

fn main() {
    let mut options = [("--from", 301), ("--to", 314), ("--rounds", 40), ("--work", 0)];
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    let mut tells = true;
    let mut programs = PROGRAMS.to_vec();
    while let Some(word) = words.next() {
        if word == "--untold" {
            tells = false;
            continue;
        }
        let value = words.next();
        if let ("--only", Some(name)) = (word.as_str(), &value) {
            programs.retain(|program| program.0 == name);
            continue;
        }
        let number = value.and_then(|number| number.parse().ok());
        match (options.iter_mut().find(|option| option.0 == word), number) {
            (Some(option), Some(number)) => option.1 = number,
            _ => panic!(
                "expected --untold, --only and a program, or --from, --to, --rounds or --work and a number, not {word}"
            ),
        }
    }
    let [(_, from), (_, to), (_, rounds), (_, work)] = options;
    assert!(
        from <= to && rounds >= 2 && !programs.is_empty(),
        "--from is at most --to, there are two rounds at least, and --only names one of the programs"
    );
    println!(
        "{rounds} rounds, seeds {from} to {to}, waits told: {tells}, work: {work} us. last: the last round with a page call; calls: page calls until then; events: their calls in the"
    );
    println!(
        "last round; us: virtual time of a request there; held / peak: at the end of it; apart: the least that streams which share nothing need together / peak"
    );
    println!(
        "{:<9} {:>7} {:>8} {:>8} {:>10} {:>4} {:>10} {:>10} {:>6} {:>10} {:>6} {:>6} {:>10}",
        "program",
        "streams",
        "declared",
        "programs",
        "last: mean",
        "most",
        "calls",
        "events",
        "us",
        "held: mean",
        "most",
        "> 1.03",
        "apart"
    );
    let mut all = Vec::new();
    for (name, program) in programs {
        for setting in [(1, true), (2, true), (2, false), (4, true), (4, false), (5, true)] {
            let outcome = |seed| run(program, setting, seed, rounds as usize, tells, work);
            let outcomes: Vec<Outcome> = (from..=to).map(outcome).collect();
            print(
                name,
                &setting.0.to_string(),
                if setting.1 { "yes" } else { "no" },
                &outcomes,
            );
            all.extend(outcomes);
        }
    }
    print("all", "", "", &all);
}
