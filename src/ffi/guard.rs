//! What every exported function passes through: the forked child's answer, the panic boundary, the last error. (What
//! threads' caches serve does not, because nothing in it can panic.)

use super::status::weir_status;
use super::text;
use crate::base::error::Error;
use crate::lifecycle::end;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a function does in a forked child, where everything belongs to the parent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum InChild {
    /// It fails with `WEIR_ERROR_FORKED`.
    Refuse,
    /// It succeeds and does nothing: it would give back what is the parent's.
    Ignore,
    /// It works: it touches nothing that processes share.
    Serve,
}

/// Runs the body of the exported function `name`.
#[inline(always)]
pub(super) fn guard(name: &str, in_child: InChild, body: impl FnOnce() -> Result<(), Error>) -> weir_status {
    if end::forked() {
        match in_child {
            InChild::Refuse => return fail(name, &Error::Forked),
            InChild::Ignore => return weir_status::WEIR_OK,
            InChild::Serve => {}
        }
    }
    // a status is handed on in a register, and an error is not
    let body = || match body() {
        Ok(()) => weir_status::WEIR_OK,
        Err(error) => fail(name, &error),
    };
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(status) => status,
        Err(payload) => fail_by_panic(name, &*payload),
    }
}

#[cold]
fn fail_by_panic(name: &str, payload: &(dyn Any + Send)) -> weir_status {
    let why = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a message");
    fail(name, &Error::Internal(why.to_owned()))
}

#[cold]
fn fail(name: &str, error: &Error) -> weir_status {
    text::set_last_error(format_args!("{name}: {error}"));
    weir_status::of(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_internal_error_with_its_message() {
        let status = guard("weir_test", InChild::Refuse, || panic!("seven is {}", 7));
        assert_eq!(status, weir_status::WEIR_ERROR_INTERNAL);
        assert_eq!(
            text::last_error(),
            "weir_test: internal error in weir: seven is 7; please report it"
        );
        assert_eq!(
            guard("weir_test", InChild::Refuse, || Ok(())),
            weir_status::WEIR_OK
        );
    }
}
