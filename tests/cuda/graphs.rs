//! How the CUDA backend hears that graphs are gone, on the stand-in driver: each test in a process of its own, with nothing
//! left open at its end.

use crate::common::cuda::{backend, handle, line};
use crate::common::standin::{Device, Object, alone, calls, control, fail, ok, stream};
use std::ptr::null_mut;
use weir::backend::cuda::CudaBackend;
use weir::backend::{Backend, BackendError};
use weir::base::units::CaptureId;

fn gone(b: &CudaBackend) -> Vec<CaptureId> {
    let mut all = Vec::new();
    b.graphs_gone(&mut |capture| all.push(capture));
    all
}

/// Begins a capture in this mode and gives its id.
fn begin(b: &CudaBackend, target: Object, mode: u32) -> CaptureId {
    ok!(stream_begin_capture(target, mode));
    line(b, handle(target)).capture.expect("a capture")
}

fn end(target: Object) -> Object {
    let mut status = 0;
    ok!(stream_capture_status(target, &raw mut status));
    assert_eq!(status, 1, "the capture was harmed");
    let mut graph = null_mut();
    ok!(stream_end_capture(target, &raw mut graph));
    graph
}

#[test]
fn a_graph_is_gone_when_all_that_was_made_of_it_is() {
    alone("a_graph_is_gone_when_all_that_was_made_of_it_is", &[], || {
        let device = Device::open(0);
        let b = backend();
        let target = stream();
        for mode in [0, 1, 2] {
            let capture = begin(&b, target, mode);
            b.watch_graph(handle(target), capture).unwrap();
            b.watch_graph(handle(target), capture).unwrap(); // twice is fine
            let graph = end(target);
            assert_eq!(gone(&b), []);
            let mut exec = null_mut();
            ok!(graph_instantiate(&raw mut exec, graph, 0));
            ok!(graph_destroy(graph));
            assert_eq!(gone(&b), []);
            ok!(graph_launch(exec, target));
            ok!(graph_exec_destroy(exec));
            ok!(stream_synchronize(target));
            // the last launch may be let go of a little after its end
            let mut heard = Vec::new();
            for _ in 0..2000 {
                heard.extend(gone(&b));
                if heard.len() == 2 {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            assert_eq!(heard, [capture, capture]);
            assert_eq!(gone(&b), []);
        }
        ok!(stream_destroy(target));
        b.close();
        drop(device);
    });
}

#[test]
fn the_order_in_which_pools_and_graphs_end_does_not_matter() {
    alone(
        "the_order_in_which_pools_and_graphs_end_does_not_matter",
        &[],
        || {
            let device = Device::open(0);
            let (first, second) = (backend(), backend());
            let target = stream();
            let capture = begin(&first, target, 0);
            first.watch_graph(handle(target), capture).unwrap();
            second.watch_graph(handle(target), capture).unwrap();
            let graph = end(target);
            first.close();
            drop(first);
            ok!(graph_destroy(graph));
            assert_eq!(gone(&second), [capture]);
            // heard of and never asked about
            let capture = begin(&second, target, 0);
            second.watch_graph(handle(target), capture).unwrap();
            ok!(graph_destroy(end(target)));
            ok!(stream_destroy(target));
            second.close();
            drop(device);
        },
    );
}

#[test]
fn what_cannot_be_watched_is_said_and_harms_nothing() {
    alone("what_cannot_be_watched_is_said_and_harms_nothing", &[], || {
        let device = Device::open(0);
        let b = backend();
        let target = stream();
        for call in [
            "cuStreamGetCaptureInfo",
            "cuUserObjectCreate",
            "cuGraphRetainUserObject",
        ] {
            let capture = begin(&b, target, 0);
            fail(call, 1, 999);
            let refused = b.watch_graph(handle(target), capture);
            assert!(
                matches!(&refused, Err(error) if error.to_string().contains(call)),
                "{call}: {refused:?}"
            );
            control!(reset_faults());
            let graph = end(target);
            assert_eq!(gone(&b), [], "{call}");
            ok!(graph_destroy(graph));
            assert_eq!(gone(&b), [], "{call}");
        }
        // not into the capture that was asked about
        let capture = begin(&b, target, 0);
        let other = CaptureId(capture.0 + 1);
        assert!(matches!(
            b.watch_graph(handle(target), other),
            Err(BackendError::Capturing(_))
        ));
        ok!(graph_destroy(end(target)));
        assert_eq!(gone(&b), []);
        ok!(stream_destroy(target));
        b.close();
        drop(device);
    });
}

#[test]
fn a_driver_before_11_3_does_not_tell() {
    alone(
        "a_driver_before_11_3_does_not_tell",
        &[("WEIR_STANDIN_VERSION", "11020")],
        || {
            let device = Device::open(0);
            let b = backend();
            let target = stream();
            let capture = begin(&b, target, 0);
            assert!(matches!(
                b.watch_graph(handle(target), capture),
                Err(BackendError::NotSupported(_))
            ));
            assert_eq!(calls("cuUserObjectCreate"), 0);
            ok!(graph_destroy(end(target)));
            ok!(stream_destroy(target));
            b.close();
            drop(device);
        },
    );
}
