//! Who used which bytes of which page last, among the calls of a round that several streams make (`company`). A page may be mapped at
//! several addresses, so it is pages that are looked at.
//!
//! A page consists of *spans*, each with one last user. What is used anew is a span from then on, in place of all that it covers: so
//! whoever looks at many spans before he uses them leaves one, and each is looked at about once.
//!
//! Invariant: a page's spans are in order, each ends after the one before it, and the last one at `END`.
//! No lock of its own: the heap's.

use super::page::PageId;
use arrayvec::ArrayVec;

/// Bytes of a page, from and up to where.
pub type Part = (PageId, u64, u64);

/// No call.
const NOBODY: u32 = u32::MAX;
/// No page is that long.
const END: u64 = u64::MAX;

#[derive(Clone, Copy, Debug)]
struct Span {
    /// Up to where; it begins where the one before it ends.
    end: u64,
    user: u32,
}

/// The last users: calls, by their number in the round.
#[derive(Debug, Default)]
pub struct Uses {
    /// By page.
    spans: Vec<Vec<Span>>,
}

impl Uses {
    /// These bytes are used.
    pub fn set(&mut self, (page, from, to): Part, user: usize) {
        let page = page as usize;
        if self.spans.len() <= page {
            self.spans.resize_with(page + 1, Vec::new);
        }
        let spans = &mut self.spans[page];
        if spans.is_empty() {
            spans.push(Span {
                end: END,
                user: NOBODY,
            });
        }
        let first = first_within(spans, from);
        let last = first + spans[first..].partition_point(|span| span.end < to);
        let mut new = ArrayVec::<Span, 3>::new();
        if start_of(spans, first) < from {
            new.push(Span {
                end: from,
                user: spans[first].user,
            });
        }
        new.push(Span {
            end: to,
            user: user as u32,
        });
        if spans[last].end > to {
            new.push(spans[last]);
        }
        match spans.get_mut(first..=last) {
            // as where a block is freed
            Some([same]) if new.len() == 1 => *same = new[0],
            _ => drop(spans.splice(first..=last, new)),
        }
    }

    /// Who used which of these bytes last, in order.
    pub fn of(&self, (page, from, to): Part) -> impl Iterator<Item = (u64, u64, usize)> + '_ {
        let spans: &[Span] = self.spans.get(page as usize).map_or(&[], |spans| spans);
        let mut start = from;
        let within = spans[first_within(spans, from)..].iter().map_while(move |span| {
            let part = (start, span.end.min(to), span.user);
            start = span.end;
            (part.0 < to).then_some(part)
        });
        let used = within.filter(|part| part.2 != NOBODY);
        used.map(|(start, end, user)| (start, end, user as usize))
    }
}

/// The first span that does not end before this byte.
fn first_within(spans: &[Span], byte: u64) -> usize {
    spans.partition_point(|span| span.end <= byte)
}

/// Where it begins.
fn start_of(spans: &[Span], place: usize) -> u64 {
    place.checked_sub(1).map_or(0, |before| spans[before].end)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against a user for each byte.
    #[test]
    fn the_last_user_of_each_byte_is_known() {
        const PAGES: u32 = 3;
        const BYTES: u64 = 40;
        let mut random = 1u64;
        let mut below = |most: u64| {
            random = random
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (random >> 33) % most
        };
        let (mut seen_none, mut most) = (0, 0);
        for _ in 0..200 {
            let mut uses = Uses::default();
            let mut model = vec![[None; BYTES as usize]; PAGES as usize];
            for step in 0..60 {
                let user = step / 2; // some are the same
                let (page, from) = (below(PAGES.into()) as u32, below(BYTES));
                let to = from + 1 + below(BYTES - from);
                uses.set((page, from, to), user);
                model[page as usize][from as usize..to as usize].fill(Some(user));
                let (page, from) = (below(PAGES.into()) as u32, below(BYTES));
                let to = from + 1 + below(BYTES - from);
                let mut seen = vec![None; BYTES as usize];
                let mut next = from;
                for (start, end, user) in uses.of((page, from, to)) {
                    assert!(next <= start && start < end && end <= to);
                    next = end;
                    seen[start as usize..end as usize].fill(Some(user));
                }
                let bytes = from as usize..to as usize;
                assert_eq!(seen[bytes.clone()], model[page as usize][bytes.clone()]);
                seen_none += u32::from(seen[bytes].contains(&None));
                for spans in &uses.spans {
                    assert!(spans.is_sorted_by(|one, next| one.end < next.end));
                    assert!(spans.last().is_none_or(|last| last.end == END));
                    most = most.max(spans.len());
                }
            }
        }
        assert!(seen_none > 0 && most > 5);
    }

    #[test]
    fn what_is_covered_is_no_more() {
        let mut uses = Uses::default();
        for user in 0..1000 {
            uses.set((1, 10 * user, 10 * user + 5), user as usize);
        }
        assert_eq!(uses.of((1, 3, 12)).collect::<Vec<_>>(), [(3, 5, 0), (10, 12, 1)]);
        uses.set((1, 0, 10_000), 7);
        assert_eq!(uses.of((1, 20, 30)).collect::<Vec<_>>(), [(20, 30, 7)]);
        assert_eq!(uses.spans[1].len(), 2);
        assert_eq!(uses.of((0, 0, 10)).count() + uses.of((2, 0, 10)).count(), 0);
    }
}
