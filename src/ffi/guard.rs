//! What every exported function passes through: the forked child's answer, the panic boundary, the last error.

use super::status::weir_status;
use super::text;
use crate::backend::process;
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
#[inline]
pub(super) fn guard(name: &str, in_child: InChild, body: impl FnOnce() -> Result<(), Error>) -> weir_status {
    if end::forked() {
        match in_child {
            InChild::Refuse => return fail(name, &Error::Forked),
            InChild::Ignore => return weir_status::WEIR_OK,
            InChild::Serve => {}
        }
    }
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => weir_status::WEIR_OK,
        Ok(Err(error)) => fail(name, &error),
        Err(payload) => fail_by_panic(name, &*payload),
    }
}

/// The same where `quick` serves nearly every call, by itself: true if it did. It is not asked in a process where
/// something else may have to be looked at before.
#[inline(always)]
pub(super) fn guard_quick(
    name: &str,
    quick: impl FnOnce() -> bool,
    rest: impl FnOnce() -> weir_status,
) -> weir_status {
    if process::disturbed() {
        return rest();
    }
    match caught(name, || quick().then_some(())) {
        Some(Ok(())) => weir_status::WEIR_OK,
        Some(Err(status)) => status,
        None => rest(),
    }
}

/// Asks for something by which a call is served, if it can be; Err if that panics. It is out of the way of what is asked
/// before, in which nothing can.
#[inline(never)]
pub(super) fn caught<R>(name: &str, ask: impl FnOnce() -> Option<R>) -> Option<Result<R, weir_status>> {
    match catch_unwind(AssertUnwindSafe(ask)) {
        Ok(served) => served.map(Ok),
        Err(payload) => Some(Err(fail_by_panic(name, &*payload))),
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
        let ask = || -> Option<()> { panic!("eight is {}", 8) };
        let served = caught("weir_test", ask);
        assert_eq!(served, Some(Err(weir_status::WEIR_ERROR_INTERNAL)));
        assert_eq!(
            text::last_error(),
            "weir_test: internal error in weir: eight is 8; please report it"
        );
        assert_eq!(
            guard("weir_test", InChild::Refuse, || Ok(())),
            weir_status::WEIR_OK
        );
    }
}
