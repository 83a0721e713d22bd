use super::super::rounds::Calls;
use super::*;

const NONE: Changes = Changes { made: 0, removed: 0 };
const BLOCK: Extent = Extent {
    bytes: 512,
    slab: None,
};

/// As the heap does: gives whether the window was whole before.
fn alloc(recording: &mut Recording, at: u64) -> bool {
    let whole = recording.is_whole(NONE, false);
    assert!(whole || recording.goes_on());
    recording.note(Step::Alloc { bytes: 1, at }, 0, BLOCK, NONE);
    whole
}

fn free(recording: &mut Recording, at: u64) {
    recording.note(Step::Free { bytes: 512, at }, 0, BLOCK, NONE);
}

#[test]
fn a_window_is_whole_from_the_call_on_before_which_nothing_takes_turns() {
    let mut recording = Recording::new(4, 0).expect("short");
    // one block lasts over the first call, at another place each time
    let mut whole = Vec::new();
    for round in 0..5 {
        free(&mut recording, round + 1);
        whole.push(alloc(&mut recording, 9));
        free(&mut recording, 9);
        whole.push(alloc(&mut recording, round + 2));
    }
    let first = whole.iter().position(|&whole| whole);
    assert!(
        first.is_some_and(|first| first < 8),
        "between two blocks there is nothing: {whole:?}"
    );
}

/// Two blocks of a length that change places: the places in use are the same, and yet the next free is of another one.
#[test]
fn blocks_that_change_places_are_not_the_same() {
    let mut recording = Recording::new(4, 0).expect("short");
    let mut whole = Vec::new();
    // each round frees both, and gets them again the other way round
    let (mut one, mut other) = (1, 2);
    for _ in 0..8 {
        free(&mut recording, one);
        whole.push(alloc(&mut recording, one));
        free(&mut recording, other);
        whole.push(alloc(&mut recording, other));
        std::mem::swap(&mut one, &mut other);
    }
    let first = whole.iter().position(|&whole| whole);
    assert!(first.is_none_or(|_| recording.window == 8), "{whole:?}");
}

/// Each round's result is kept until the next one's is there, at the same two places in turn: both came at the same turn.
#[test]
fn a_block_that_is_kept_until_the_next_one_is_there_is_not_the_same() {
    let mut recording = Recording::new(4, 0).expect("short");
    let mut whole = Vec::new();
    for round in 0..12 {
        whole.push(alloc(&mut recording, 8 - round % 2));
        whole.push(alloc(&mut recording, 9));
        free(&mut recording, 9);
        free(&mut recording, 7 + round % 2); // the last round's
    }
    let first = whole.iter().position(|&whole| whole);
    assert!(
        first.is_some() && recording.window == 8,
        "it takes two rounds: {whole:?}"
    );
}

#[test]
fn blocks_that_take_turns_are_found_in_a_window_of_two_rounds() {
    let mut recording = Recording::new(2, 0).expect("short");
    // the next one comes before the last one goes: 1, 2, 1, 2
    let mut whole = None;
    for call in 0..12 {
        let (next, last) = if call % 2 == 0 { (2, 1) } else { (1, 2) };
        if alloc(&mut recording, next) {
            whole = whole.or(Some(recording.window));
        }
        free(&mut recording, last);
    }
    assert_eq!(whole, Some(4));
}

/// Three blocks, each kept until the next one is there: each takes the place that the one before it left.
#[test]
fn blocks_that_take_each_others_places_are_found_in_a_window_of_more_rounds() {
    let mut recording = Recording::new(6, 0).expect("short");
    let mut places = [1, 2, 3];
    let (mut next, mut whole) = (4, None);
    for call in 0.. {
        if alloc(&mut recording, next) {
            whole = Some(recording.window);
            break;
        }
        std::mem::swap(&mut places[call % 3], &mut next);
        free(&mut recording, next);
    }
    // it is known when blocks came once all that last came since the beginning
    assert_eq!((whole, recording.made()), (Some(24), 30 + 1));
}

/// The latest calls are the same as those a bit more or less than a round ago, too.
#[test]
fn parts_that_are_alike_do_not_hide_how_many_calls_a_round_has() {
    let mut recording = Recording::new(1040, 0).expect("short");
    for pair in 0..2000 {
        assert!(recording.goes_on());
        if recording.has_period() {
            break;
        }
        let bytes = if pair % 500 < 20 { pair % 500 } else { 0 };
        recording.note(Step::Alloc { bytes, at: 512 }, 0, BLOCK, NONE);
        recording.note(Step::Free { bytes: 512, at: 512 }, 0, BLOCK, NONE);
    }
    assert_eq!(recording.round(), 1000);
}

/// Rounds of so many calls, thought to have about as many, in which blocks of some lengths come and go. How many calls the window
/// has that is whole.
fn found(about: u64, lengths: u64) -> Option<usize> {
    let mut recording = Recording::new(about, 0).expect("short");
    for call in 0..1000 {
        if recording.is_whole(NONE, false) {
            return Some(recording.steps().len());
        }
        if !recording.goes_on() {
            return None;
        }
        let bytes = call % lengths;
        recording.note(Step::Alloc { bytes, at: 512 }, 0, BLOCK, NONE);
        recording.note(Step::Free { bytes: 512, at: 512 }, 0, BLOCK, NONE);
    }
    None
}

#[test]
fn how_many_calls_a_round_has_is_found() {
    assert_eq!(found(104, 52), Some(104));
    assert_eq!(found(100, 52), Some(104), "about so many");
    assert_eq!(found(104, 3 * 52), Some(3 * 104), "rounds take turns");
    assert_eq!(found(104, 1000), None, "nothing comes again");
}

/// A long round that has as many calls as was thought is known soon after it began again, and any other one later.
#[test]
fn how_many_calls_a_long_round_has_is_known_soon() {
    let long = 100 * SOON as u64;
    // as many as thought, more, or rounds that take turns
    for (thought, round) in [
        (long, long),
        (long, long + 2),
        (long, long + 100),
        (long / 4, long / 2),
        (1504, 3 * 1504),
    ] {
        let mut recording = Recording::new(thought, 0).expect("short");
        while recording.goes_on() && !recording.has_period() {
            let bytes = recording.made() % round;
            recording.note(Step::Alloc { bytes, at: 512 }, 0, BLOCK, NONE);
            recording.note(Step::Free { bytes: 512, at: 512 }, 0, BLOCK, NONE);
        }
        assert_eq!(recording.round(), round);
        let about = round / thought * thought;
        let after = match about == round && round >= (SOON * LAST) as u64 {
            true => round / SOON as u64,
            false => near(about as usize) as u64 + LAST as u64,
        };
        assert!(
            recording.made() - about - after < 2,
            "{thought} {round} {}",
            recording.made()
        );
    }
}

#[test]
fn a_window_in_which_mappings_were_removed_is_not_whole() {
    let mut recording = Recording::new(2, 0).expect("short");
    let changed = Changes { made: 1, removed: 1 };
    for changes in [NONE, NONE, changed] {
        assert!(!recording.is_whole(changed, false) && recording.goes_on());
        recording.note(Step::Alloc { bytes: 1, at: 1 }, 0, BLOCK, changes);
        recording.note(Step::Free { bytes: 512, at: 1 }, 0, BLOCK, changes);
    }
    // those that were made since are there
    let more = Changes { made: 2, ..changed };
    assert!(recording.goes_on() && recording.is_whole(more, false));
}

/// Rounds of eight calls that are thought to be of four. A wrong guess changes nothing of what is found out.
#[test]
fn a_wrong_guess_is_as_if_there_had_been_none() {
    let mut recordings = [true, false].map(|_| Recording::new(4, 0).expect("short"));
    let mut guesses = 0;
    let steps = (0..6).flat_map(|pair| {
        let bytes = if pair % 4 == 3 { 2 } else { 1 };
        [Step::Alloc { bytes, at: 512 }, Step::Free { bytes: 512, at: 512 }]
    });
    let steps: Vec<Step> = steps.collect();
    for (number, &step) in steps.iter().enumerate() {
        recordings[0].note(step, 0, BLOCK, NONE);
        // the other one guesses that the calls come again, and two do
        if recordings[1].guesses_round(NONE, false) {
            assert_eq!(number, 4);
            guesses += 1;
            recordings[1].begin();
            recordings[1].resume(Progress { rounds: 0, steps: 2 }, NONE);
        }
        if guesses == 0 || number > 5 {
            recordings[1].note(step, 0, BLOCK, NONE);
        }
    }
    assert_eq!(guesses, 1);
    let [one, other] = recordings.map(|recording| (recording.made(), recording.steps().collect::<Vec<_>>()));
    assert_eq!(one, other);
}

/// What was replayed is as if its calls had been made one by one, also what is known of when blocks came; the round may be replayed again once
/// one more call was the same.
#[test]
fn a_replay_that_ended_is_as_if_its_calls_had_been_made() {
    // in each round a block comes, and one that came in the round before goes
    let round = |number: u32| {
        let (next, last) = if number.is_multiple_of(2) { (1, 2) } else { (2, 1) };
        [(true, next), (true, 9), (false, last), (false, 9)]
    };
    let note = |recording: &mut Recording, (is_alloc, at): (bool, u64)| {
        let step = match is_alloc {
            true => Step::Alloc { bytes: 1, at },
            false => Step::Free { bytes: 512, at },
        };
        recording.note(step, 0, BLOCK, NONE);
    };
    let learn = || {
        let mut recording = Recording::new(4, 0).expect("short");
        for (number, call) in (0..).flat_map(round).enumerate() {
            if call.0 && (recording.is_whole(NONE, false) || !recording.goes_on()) {
                return (recording, number);
            }
            note(&mut recording, call);
        }
        unreachable!()
    };
    for progress in [(0, 5), (1, 0), (1, 3), (5, 2), (16, 7)] {
        let ((mut replayed, number), (mut called, _)) = (learn(), learn());
        let window = replayed.steps().len() as u64;
        assert_eq!(window, 8);
        let (rounds, steps) = progress;
        let calls = (0..).flat_map(round).skip(number);
        replayed.begin();
        replayed.resume(Progress { rounds, steps }, NONE);
        let many = (rounds * window) as usize + steps;
        calls.clone().take(many).for_each(|call| note(&mut called, call));
        let all = |recording: &Recording| {
            let notes = recording.notes().iter().rev().take(8);
            let notes = notes.map(|note| (note.step(), note.age())).collect::<Vec<_>>();
            let mut came: Vec<_> = recording.came.clone().into_iter().collect();
            came.sort_unstable();
            (recording.made(), recording.sum, notes, came)
        };
        assert_eq!(all(&replayed), all(&called), "{progress:?}");
        assert!(!replayed.is_whole(NONE, false), "the next call is another one");
        assert!(replayed.is_guided(), "{progress:?}");
        note(&mut replayed, calls.clone().nth(many).expect("endless"));
        assert!(
            replayed.goes_on() && replayed.is_whole(NONE, false),
            "{progress:?}"
        );
    }
}

#[test]
fn calls_are_guessed_to_be_a_round_once_where_no_mapping_was_removed() {
    let removed = Changes { made: 1, removed: 1 };
    for (during, now) in [(NONE, NONE), (NONE, removed), (removed, removed)] {
        let mut recording = Recording::new(4, 0).expect("short");
        for changes in [NONE, during] {
            recording.note(Step::Alloc { bytes: 1, at: 512 }, 0, BLOCK, changes);
            recording.note(Step::Free { bytes: 512, at: 512 }, 0, BLOCK, changes);
        }
        assert_eq!(recording.guesses_round(now, false), now == NONE);
        assert!(!recording.guesses_round(now, false), "twice");
    }
}

#[test]
fn what_was_done_is_counted_and_differs_by_the_blocks_of_the_last_round() {
    let mut recording = Recording::new(4, 0).expect("short");
    for _ in 0..2 {
        alloc(&mut recording, 1);
        alloc(&mut recording, 2);
        free(&mut recording, 1);
        free(&mut recording, 2);
    }
    assert!(recording.goes_on() && recording.is_whole(NONE, false));
    recording.begin();
    let progress = Progress { rounds: 2, steps: 3 };
    let done = recording.done(progress);
    let calls = Calls { allocs: 6, frees: 5 };
    assert_eq!((done.calls, done.more), (calls, 512));
    let [gone, born] = recording.difference(progress.steps);
    assert_eq!((gone, born), (vec![], vec![(2, BLOCK)]));
}
