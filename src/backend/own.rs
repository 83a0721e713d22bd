//! What each thread has of its own, found without calling anything.
//!
//! A thread-local variable of a shared library is reached by a call of `__tls_get_addr`, before which the caller saves all
//! registers that it still needs. Here a few words of each thread say where its value is, and what of it is nearest at hand; they are
//! reached through a TLS descriptor, whose call keeps every register but one and is two instructions where the words are in the static
//! TLS block. A linker that makes a program of the static library leaves no call at all. (Oliva, Araújo: "Speeding up thread-local
//! storage access in dynamic libraries", 2006.) On aarch64 descriptors are what compilers use anyway.
//!
//! In the static block is what the libraries have that a program is linked with, and what is in a library that is loaded later
//! if all its thread-local storage fits into what the C library has set aside for such, some 500 bytes for all of them
//! together. So the values are not thread-local storage: they lie in a `Store`, a thread takes a place in it when it first
//! needs one, and gives it back when it ends.
//!
//! Invariant: a place is taken if and only if one thread's `local` names it, or its value was not empty when its thread ended,
//! or that thread's end was not told: it called first when the C library had gone through the keys (`key.rs`) for the last time.

use super::key::Key;
use super::process::{CALM_IS, calm};
use super::store::Store;
use std::cell::Cell;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};
use std::thread::LocalKey;

/// What each thread can have of its own.
pub trait Value: 'static {
    /// What it is at first. A constant, so that nothing can go wrong once a place is taken.
    const FRESH: Self;

    /// The thread ends: empties it, and says whether it did.
    fn end(&self) -> bool;
}

/// A value of each thread that needs no drop. No two have the same `ID`, and none has 0.
pub struct Own<T: Value, const ID: usize> {
    /// Where it is; NULL: the thread has none, `ended`: nor will it have one.
    local: LocalKey<Cell<*const T>>,
    key: Key,
    store: &'static Store<T>,
}

/// A thread's words. All are 0 at first.
#[repr(C)]
struct Words {
    /// Where its value is...
    value: Cell<*const ()>,
    /// ...and the number of whose it is.
    of: Cell<usize>,
    near: Near,
}

impl Words {
    fn set(&self, value: *const (), of: usize) {
        self.near.known.set(0);
        self.value.set(value);
        self.of.set(of);
    }
}

/// What of a thread's value was brought near last: who asks for it does not wait for the value, and the loads that lead to it from there.
#[repr(C)]
struct Near {
    /// The number of whose it is; 0: nothing is near.
    known: Cell<usize>,
    /// Two numbers that say what it is...
    key: [Cell<usize>; 2],
    /// ...and two addresses.
    places: [Cell<*const ()>; 2],
}

impl Near {
    /// The addresses, if it is what has this key, of a value with that number.
    #[inline(always)]
    fn get(&self, of: usize, key: [usize; 2]) -> Option<[*const (); 2]> {
        let it = self.known.get() == of && self.key[0].get() == key[0] && self.key[1].get() == key[1];
        it.then(|| [self.places[0].get(), self.places[1].get()])
    }
}

/// The calling thread's value. It stays with that thread.
pub struct Mine<T> {
    /// Not `NonNull`: whether there is one is then a branch, which costs a hit less than a pointer that may be NULL.
    value: *const T,
    _stays: PhantomData<*const ()>,
}

impl<T> Deref for Mine<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: it is this thread's, since this cannot go to another one, and is there until a destructor at the thread's end
        // gives it back: what called that has returned, or never goes on.
        unsafe { &*self.value }
    }
}

impl<T: Value, const ID: usize> Own<T, ID> {
    /// Values in places of this store, which nobody else uses.
    pub const fn new(local: LocalKey<Cell<*const T>>, store: &'static Store<T>) -> Own<T, ID> {
        const { assert!(!std::mem::needs_drop::<T>(), "its end empties it") };
        const { assert!(ID != 0, "that of a thread which has none") };
        Own {
            local,
            key: Key::new(at_end::<T, ID>),
            store,
        }
    }

    /// The calling thread's value, if it has asked `get` for it since it asked for another one.
    #[inline(always)]
    pub fn known(&'static self) -> Option<Mine<T>> {
        let words = words::at();
        // whoever has this number put the value there
        (words.of.get() == ID).then(|| Mine::of(words.value.get().cast()))
    }

    /// The same, unless the process was disturbed: both are one question.
    #[inline(always)]
    pub fn calm(&'static self) -> Option<Mine<T>> {
        const { assert!(ID == CALM_IS) };
        let words = words::at();
        // a thread that has none has 0, which is not the number of a process that was disturbed either
        (words.of.get() == calm()).then(|| Mine::of(words.value.get().cast()))
    }

    /// What was brought near last, if that has this key; unless the process was disturbed.
    #[inline(always)]
    pub fn near(&'static self, key: [usize; 2]) -> Option<[*const (); 2]> {
        const { assert!(ID == CALM_IS) };
        words::at().near.get(calm(), key)
    }

    /// What of the thread's value has this key is at these places, until something else is brought near, or nothing is.
    #[inline]
    pub fn bring_near(&'static self, key: [usize; 2], places: [*const (); 2]) {
        let words = words::at();
        if words.of.get() != ID {
            return;
        }
        for number in 0..2 {
            words.near.key[number].set(key[number]);
            words.near.places[number].set(places[number]);
        }
        words.near.known.set(ID);
    }

    /// Nothing is near.
    pub fn forget_near(&'static self) {
        words::at().near.known.set(0);
    }

    /// The calling thread's value. None: it has none, and there is no place left, or it will not come to its end, or has.
    #[inline(always)]
    pub fn get(&'static self) -> Option<Mine<T>> {
        match self.known() {
            Some(mine) => Some(mine),
            None => self.find(),
        }
    }

    #[cold]
    #[inline(never)]
    fn find(&'static self) -> Option<Mine<T>> {
        let mut value = self.local.get();
        if value == self.ended() {
            return None;
        }
        if value.is_null() {
            let taken = self.store.take()?;
            if !self.key.set(ptr::from_ref(self).cast()) {
                self.store.give_back(taken);
                return None;
            }
            value = taken.as_ptr();
            self.local.set(value);
        }
        words::at().set(value.cast(), ID);
        Some(Mine::of(value))
    }

    /// Where no value is.
    fn ended(&'static self) -> *const T {
        ptr::from_ref(self).cast()
    }

    /// The thread ends. What calls later, in destructors of keys that come behind this one, gets nothing: it might be told of no
    /// other end.
    fn end(&'static self) {
        let value = self.local.replace(self.ended());
        words::at().set(ptr::null(), 0);
        // a panic must not reach the C library; what it leaves behind keeps its place
        let empty = catch_unwind(AssertUnwindSafe(|| Mine::of(value).end())).unwrap_or(false);
        if empty && let Some(value) = NonNull::new(value.cast_mut()) {
            self.store.give_back(value);
        }
    }

    /// The library goes, and with it what ends a value.
    pub fn close(&'static self) {
        self.key.close();
    }
}

extern "C" fn at_end<T: Value, const ID: usize>(own: *mut c_void) {
    // SAFETY: what `find` has set, for this `T`.
    unsafe { &*own.cast::<Own<T, ID>>() }.end();
}

impl<T> Mine<T> {
    #[inline(always)]
    fn of(value: *const T) -> Mine<T> {
        Mine {
            value,
            _stays: PhantomData,
        }
    }
}

/// The C library makes a thread's block of a library that was loaded later when it is first touched, and keeps the main
/// thread's for ever. Valgrind does not call that a leak if it happened in `__tls_get_addr`. So whoever loads weir touches
/// the block that way, before a descriptor does.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = touch;

extern "C" fn touch() {
    thread_local! {
        static ANY: Cell<u8> = const { Cell::new(0) };
    }
    ANY.with(|any| std::hint::black_box(any).set(1));
}

/// The calling thread's words.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod words {
    use super::Words;
    use std::arch::{asm, global_asm};

    const _: () = assert!(size_of::<Words>() == 56);
    global_asm!(
        ".pushsection .tbss.weir_own_words, \"awT\", @nobits",
        ".p2align 4",
        ".globl weir_own_words",
        ".hidden weir_own_words",
        ".type weir_own_words, @object",
        ".size weir_own_words, 56",
        "weir_own_words:",
        ".zero 56",
        ".popsection",
        options(att_syntax)
    );

    #[inline(always)]
    pub fn at() -> &'static Words {
        let at: *const Words;
        // SAFETY: the descriptor's call gives in rax how far the words are from where fs is, which itself is what lies there, and keeps
        // all else: but for vector and mask registers in C libraries before 2.40 (glibc's bug 31372), of which the compiler forgets
        // those that the processor it compiles for does not have.
        unsafe {
            asm!(
                "leaq weir_own_words@tlsdesc(%rip), %rax",
                "call *weir_own_words@tlscall(%rax)",
                "addq %fs:0, %rax",
                out("rax") at,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _,
                out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                out("zmm16") _, out("zmm17") _, out("zmm18") _, out("zmm19") _, out("zmm20") _, out("zmm21") _,
                out("zmm22") _, out("zmm23") _, out("zmm24") _, out("zmm25") _, out("zmm26") _, out("zmm27") _,
                out("zmm28") _, out("zmm29") _, out("zmm30") _, out("zmm31") _,
                out("k0") _, out("k1") _, out("k2") _, out("k3") _, out("k4") _, out("k5") _, out("k6") _, out("k7") _,
                options(att_syntax)
            );
        }
        // SAFETY: they are there, and zero at first, for as long as the thread, with which a reference to them stays.
        unsafe { &*at }
    }
}

/// The same where compilers do it.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
mod words {
    use super::{Near, Words};
    use std::cell::Cell;
    use std::ptr;

    thread_local! {
        static WORDS: Words = const {
            Words {
                value: Cell::new(ptr::null()),
                of: Cell::new(0),
                near: Near {
                    known: Cell::new(0),
                    key: [const { Cell::new(0) }; 2],
                    places: [const { Cell::new(ptr::null()) }; 2],
                },
            }
        };
    }

    #[inline(always)]
    pub fn at() -> &'static Words {
        // SAFETY: they need no drop, so they are there for as long as the thread, with which a reference to them stays.
        WORDS.with(|words| unsafe { &*ptr::from_ref(words) })
    }
}

#[cfg(test)]
mod tests {
    use super::super::store::MOST;
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    static ENDED: AtomicUsize = AtomicUsize::new(0);

    impl Value for Cell<u32> {
        const FRESH: Cell<u32> = Cell::new(1);

        fn end(&self) -> bool {
            ENDED.fetch_add(self.get() as usize, Ordering::Relaxed);
            true
        }
    }

    impl Value for Cell<u64> {
        const FRESH: Cell<u64> = Cell::new(2);

        fn end(&self) -> bool {
            true
        }
    }

    impl Value for Cell<bool> {
        const FRESH: Cell<bool> = Cell::new(false);

        fn end(&self) -> bool {
            assert!(self.get(), "the test's: this thread panics at its end");
            true
        }
    }

    thread_local! {
        static A: Cell<*const Cell<u32>> = const { Cell::new(ptr::null()) };
        static B: Cell<*const Cell<u64>> = const { Cell::new(ptr::null()) };
    }
    static STORE_OF_A: Store<Cell<u32>> = Store::new();
    static STORE_OF_B: Store<Cell<u64>> = Store::new();
    static OF_A: Own<Cell<u32>, 2> = Own::new(A, &STORE_OF_A);
    static OF_B: Own<Cell<u64>, 3> = Own::new(B, &STORE_OF_B);

    /// Whatever was asked for before, a thread finds its own value of the kind that it asks for, a fresh one at first, in a
    /// place that others had before, more of them than there are places.
    #[test]
    fn each_thread_has_its_own_of_each_kind_until_it_ends() {
        let ask = |n: u32| {
            for round in 0..3 {
                let (a, b) = (OF_A.get().expect("a place"), OF_B.get().expect("a place"));
                assert_eq!(Cell::get(&a), if round == 0 { 1 } else { n });
                assert_eq!(Cell::get(&b), if round == 0 { 2 } else { u64::from(n) << 32 });
                a.set(n);
                b.set(u64::from(n) << 32);
            }
        };
        for _ in 0..MOST / 8 + 1 {
            let threads: Vec<_> = (10..18).map(|n| std::thread::spawn(move || ask(n))).collect();
            threads
                .into_iter()
                .for_each(|thread| thread.join().expect("no panic"));
            assert_eq!(STORE_OF_A.taken(), 0, "given back");
        }
        assert_eq!(
            ENDED.load(Ordering::Relaxed),
            (MOST / 8 + 1) * (10..18).sum::<usize>()
        );
    }

    /// What is near is found by its key alone, by the thread that brought it there alone, and only as long as the thread's value is the one
    /// that it had then.
    #[test]
    fn near_is_what_was_brought_there_last() {
        thread_local! {
            static LOCAL: Cell<*const Cell<u64>> = const { Cell::new(ptr::null()) };
        }
        static STORE: Store<Cell<u64>> = Store::new();
        static OF: Own<Cell<u64>, 5> = Own::new(LOCAL, &STORE);
        thread_local! {
            static OTHER: Cell<*const Cell<u64>> = const { Cell::new(ptr::null()) };
        }
        static OTHERS: Store<Cell<u64>> = Store::new();
        static OF_OTHER: Own<Cell<u64>, 6> = Own::new(OTHER, &OTHERS);
        // whether the process is calm other tests decide
        let near = |key| words::at().near.get(5, key);
        let places = |n: usize| [ptr::without_provenance(n), ptr::without_provenance(n + 1)];
        let alone = move || {
            assert!(near([0, 0]).is_none());
            OF.bring_near([5, 6], places(7));
            assert!(near([5, 6]).is_none(), "there is no value yet");
            OF.get().expect("a place");
            assert!([[0, 0], [5, 6]].iter().all(|&key| near(key).is_none()));
            OF.bring_near([5, 6], places(7));
            assert_eq!(near([5, 6]), Some(places(7)));
            let others = [[0, 0], [5, 0], [0, 6], [6, 5]];
            assert!(others.iter().all(|&key| near(key).is_none()));
            OF.get().expect("the same");
            assert_eq!(near([5, 6]), Some(places(7)));
            OF.bring_near([0, 0], places(9));
            assert_eq!((near([0, 0]), near([5, 6])), (Some(places(9)), None));
            OF.forget_near();
            assert!([[0, 0], [5, 6]].iter().all(|&key| near(key).is_none()));
            OF.bring_near([5, 6], places(7));
        };
        let thread = std::thread::spawn(move || {
            alone();
            std::thread::spawn(alone).join().expect("another's is not near");
            OF_OTHER.get().expect("a place");
            assert!(near([5, 6]).is_none(), "the words are another value's");
            OF.get().expect("the same");
            assert!(near([5, 6]).is_none(), "that was before");
        });
        thread.join().expect("no panic");
    }

    /// It stays where it is, the next thread has another place, and nothing else happens.
    #[test]
    fn a_value_that_cannot_be_emptied_costs_its_place() {
        thread_local! {
            static LOCAL: Cell<*const Cell<bool>> = const { Cell::new(ptr::null()) };
        }
        static STORE: Store<Cell<bool>> = Store::new();
        static OF: Own<Cell<bool>, 4> = Own::new(LOCAL, &STORE);
        for good in [false, true, true] {
            let thread = std::thread::spawn(move || OF.get().expect("a place").set(good));
            thread.join().expect("the panic was no part of it");
            assert_eq!(STORE.taken(), 1);
        }
    }
}
