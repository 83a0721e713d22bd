//! Random numbers that are the same everywhere: SplitMix64 (Steele, Lea, Flood, 2014).

/// A generator.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Log-uniform from 1 to `1 << bits`.
    pub fn log_uniform(&mut self, bits: u32) -> u64 {
        let octave = self.below(u64::from(bits)) as u32;
        (1 << octave) + self.below(1 << octave)
    }

    /// A number of nanoseconds that is `nanos` on average: half to one and a half times as many, and now and then 16 times as many
    /// more, as where something else has the processor.
    pub fn about(&mut self, nanos: u64) -> u64 {
        let rare = if self.below(512) == 0 { 16 * nanos } else { 0 };
        nanos / 2 + self.below(nanos + 1) + rare
    }
}
