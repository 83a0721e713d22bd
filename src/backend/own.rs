//! What each thread has of its own, found without calling anything.
//!
//! A thread-local variable of a shared library is reached by a call of `__tls_get_addr`, before which the caller saves all
//! registers that it still needs. Here two words of each thread say where its value is; they are reached through a TLS
//! descriptor, whose call keeps every register but one and is two instructions where the words are in the static TLS
//! block, as they are for a library that the program is linked with. For one that is loaded later it costs about as much as
//! `__tls_get_addr`, because what weir has of each thread is more than the C library has set aside for such. A linker that
//! makes a program of the static library leaves no call at all. (Oliva, Araújo: "Speeding up thread-local storage access in
//! dynamic libraries", 2006.) On aarch64 descriptors are what compilers use anyway.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::atomic::AtomicBool;
use std::thread::LocalKey;

/// A value of each thread that needs no drop.
pub struct Own<T: 'static> {
    local: LocalKey<T>,
    /// Something that may change has an address that nothing else has.
    _unique: AtomicBool,
}

/// The calling thread's value. It stays with that thread.
pub struct Mine<T: 'static> {
    value: *const T,
    _stays: PhantomData<*const ()>,
}

impl<T: 'static> Deref for Mine<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: it is this thread's, since this cannot go to another one, and is there until the thread is gone, since it
        // needs no drop.
        unsafe { &*self.value }
    }
}

impl<T: 'static> Own<T> {
    /// The value of a variable.
    pub const fn new(local: LocalKey<T>) -> Own<T> {
        const { assert!(!std::mem::needs_drop::<T>(), "it is there as long as its thread") };
        Own {
            local,
            _unique: AtomicBool::new(false),
        }
    }

    /// The calling thread's value, if it has asked `get` for it since it asked for another one.
    #[inline(always)]
    pub fn known(&'static self) -> Option<Mine<T>> {
        let (value, of) = words::get();
        // whoever has this address put the value there
        (of == std::ptr::from_ref(self).addr()).then(|| Mine {
            value: value.cast(),
            _stays: PhantomData,
        })
    }

    /// The calling thread's value.
    pub fn get(&'static self) -> Mine<T> {
        self.known().unwrap_or_else(|| self.find())
    }

    #[cold]
    #[inline(never)]
    fn find(&'static self) -> Mine<T> {
        let value = self.local.with(|value| std::ptr::from_ref(value));
        words::set(value.cast(), std::ptr::from_ref(self).addr());
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

/// The thread's two words: an address, and whose it is; 0 at first.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod words {
    use std::arch::{asm, global_asm};

    global_asm!(
        ".pushsection .tbss.weir_own_words, \"awT\", @nobits",
        ".p2align 4",
        ".globl weir_own_words",
        ".hidden weir_own_words",
        ".type weir_own_words, @object",
        ".size weir_own_words, 16",
        "weir_own_words:",
        ".zero 16",
        ".popsection",
        options(att_syntax)
    );

    #[inline(always)]
    pub fn get() -> (*const (), usize) {
        let (address, of);
        // SAFETY: the descriptor's call gives in rax how far the words are from where fs is, and keeps all else: but for
        // vector registers in C libraries before 2.40 (glibc's bug 31372). Both words are this thread's.
        unsafe {
            asm!(
                "leaq weir_own_words@tlsdesc(%rip), %rax",
                "call *weir_own_words@tlscall(%rax)",
                "movq %fs:8(%rax), {of}",
                "movq %fs:(%rax), %rax",
                of = out(reg) of, out("rax") address,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _,
                out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                options(att_syntax)
            );
        }
        (address, of)
    }

    pub fn set(address: *const (), of: usize) {
        // SAFETY: as in `get`.
        unsafe {
            asm!(
                "leaq weir_own_words@tlsdesc(%rip), %rax",
                "call *weir_own_words@tlscall(%rax)",
                "movq {address}, %fs:(%rax)",
                "movq {of}, %fs:8(%rax)",
                address = in(reg) address, of = in(reg) of, out("rax") _,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _,
                out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                options(att_syntax)
            );
        }
    }
}

/// The same where compilers do it.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
mod words {
    use std::cell::Cell;

    thread_local! {
        static WORDS: Cell<(*const (), usize)> = const { Cell::new((std::ptr::null(), 0)) };
    }

    #[inline(always)]
    pub fn get() -> (*const (), usize) {
        WORDS.get()
    }

    pub fn set(address: *const (), of: usize) {
        WORDS.set((address, of));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local! {
        static A: Cell<u32> = const { Cell::new(1) };
        static B: Cell<u64> = const { Cell::new(2) };
    }
    static OF_A: Own<Cell<u32>> = Own::new(A);
    static OF_B: Own<Cell<u64>> = Own::new(B);

    /// Whatever was asked for before, a thread finds its own value of the kind that it asks for.
    #[test]
    fn each_thread_has_its_own_of_each_kind() {
        let ask = |n: u32| {
            for round in 0..3 {
                let (a, b) = (OF_A.get(), OF_B.get());
                assert_eq!(Cell::get(&a), if round == 0 { 1 } else { n });
                assert_eq!(Cell::get(&b), if round == 0 { 2 } else { u64::from(n) << 32 });
                a.set(n);
                b.set(u64::from(n) << 32);
                assert!(A.with(|same| std::ptr::eq(same, &*a)) && B.with(|same| std::ptr::eq(same, &*b)));
            }
        };
        std::thread::scope(|scope| {
            for n in 10..20 {
                scope.spawn(move || ask(n));
            }
        });
        ask(5);
    }
}
