//! Sizes: rounding, and the classes of small blocks.
//!
//! Small blocks have four classes an octave, so that rounding up wastes at most a quarter of a block (the
//! spacing of jemalloc's classes); from `SMALL_MAX` on blocks are cut to `GRAIN` exactly.

/// Blocks above `SMALL_MAX` start and end at multiples of this.
pub const GRAIN: u64 = 512;
/// Every block is aligned to this.
pub const MIN_ALIGN: u64 = 256;
/// The largest alignment that can be asked for.
pub const MAX_ALIGN: u64 = 1 << 30;
/// The largest block that comes from a slab.
pub const SMALL_MAX: u64 = 32 << 10;
/// Slab runs are aligned to this, and the page map has one entry for each piece of this size.
pub const WINDOW: u64 = 64 << 10;
/// The largest request: no device has more, and sums of sizes stay far from overflow.
pub const MAX_REQUEST: u64 = 1 << 46;
/// Number of small classes.
pub const CLASSES: usize = 24;

/// `value` rounded up to a multiple of the power of two `to`.
pub const fn round_up(value: u64, to: u64) -> u64 {
    (value + to - 1) & !(to - 1)
}

/// `value` rounded down to a multiple of the power of two `to`.
pub const fn round_down(value: u64, to: u64) -> u64 {
    value & !(to - 1)
}

/// The block sizes of the classes.
pub const CLASS_BYTES: [u32; CLASSES] = class_table();

const fn class_table() -> [u32; CLASSES] {
    let mut table = [0; CLASSES];
    let (mut class, mut step, mut size) = (0, 256, 0);
    while class < CLASSES {
        size += step;
        table[class] = size;
        if class >= 7 && class % 4 == 3 {
            step *= 2;
        }
        class += 1;
    }
    table
}

/// The class of blocks of at least so many times `MIN_ALIGN`.
const CLASS_OF: [u8; (SMALL_MAX / MIN_ALIGN) as usize + 1] = {
    let mut table = [0; (SMALL_MAX / MIN_ALIGN) as usize + 1];
    let (mut class, mut count) = (0, 0);
    while count < table.len() {
        if CLASS_BYTES[class] < count as u32 * MIN_ALIGN as u32 {
            class += 1;
        }
        table[count] = class as u8;
        count += 1;
    }
    table
};

/// The class of the smallest blocks of at least `bytes` that are aligned to `align`; none if such blocks do
/// not come from slabs. Runs are aligned to `WINDOW`, so a block is as aligned as its size.
#[inline]
pub fn class_of(bytes: u64, align: u64) -> Option<usize> {
    if bytes > SMALL_MAX || align > SMALL_MAX {
        return None;
    }
    if align <= MIN_ALIGN {
        return plain_class(bytes);
    }
    aligned_class(bytes, align)
}

/// The same for blocks aligned as all are. Nothing in it can fail.
#[inline(always)]
pub fn plain_class(bytes: u64) -> Option<usize> {
    if bytes > SMALL_MAX {
        return None;
    }
    let class = CLASS_OF.get(bytes.div_ceil(MIN_ALIGN) as usize)?;
    Some((*class).into())
}

fn aligned_class(bytes: u64, align: u64) -> Option<usize> {
    let bytes = round_up(bytes.max(1), align);
    if bytes > SMALL_MAX {
        return None;
    }
    let fits = |&class: &usize| u64::from(CLASS_BYTES[class]).is_multiple_of(align);
    (CLASS_OF[(bytes / MIN_ALIGN) as usize].into()..CLASSES).find(fits)
}

/// Bytes of a slab run of a class: at least eight blocks, at most 256, and whole windows.
pub const fn run_bytes(class: usize) -> u64 {
    let eight = CLASS_BYTES[class] as u64 * 8;
    round_up(eight, WINDOW)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_cover_every_size_tightly() {
        assert_eq!(u64::from(CLASS_BYTES[CLASSES - 1]), SMALL_MAX);
        for bytes in 0..=SMALL_MAX {
            let class = class_of(bytes, 0).unwrap();
            let size = u64::from(CLASS_BYTES[class]);
            assert!(size >= bytes, "{bytes} in class of {size}");
            assert!(
                class == 0 || u64::from(CLASS_BYTES[class - 1]) < bytes,
                "{bytes}: not the smallest class"
            );
        }
        assert_eq!(class_of(SMALL_MAX + 1, 0), None);
    }

    #[test]
    fn aligned_classes_are_multiples() {
        for shift in 0..=15 {
            for bytes in [0, 1, 300, 5000, 20_000] {
                if let Some(class) = class_of(bytes, 1 << shift) {
                    assert_eq!(u64::from(CLASS_BYTES[class]) % (1 << shift), 0);
                    assert!(u64::from(CLASS_BYTES[class]) >= bytes);
                }
            }
        }
        assert_eq!(class_of(1, 1 << 16), None);
    }

    #[test]
    fn runs_hold_eight_to_256_blocks() {
        for (class, &bytes) in CLASS_BYTES.iter().enumerate() {
            let blocks = run_bytes(class) / u64::from(bytes);
            assert!((8..=256).contains(&blocks), "class {class}: {blocks}");
        }
    }
}
