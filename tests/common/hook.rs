//! A decorator that runs a test's own code inside a chosen backend call: what another thread might do at
//! just that moment, without leaving it to chance.

use parking_lot::Mutex;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use weir::backend::call::Call;
use weir::backend::{Backend, BackendError, Event};
use weir::base::units::{Addr, CaptureId, PageHandle, StreamHandle, StreamId, Timeline};

/// What is to be done.
type Action = Box<dyn FnOnce() + Send>;

/// A backend with a hook.
pub struct Hooked {
    inner: Arc<dyn Backend>,
    actions: Mutex<Vec<(Call, bool, Action)>>,
}

impl std::fmt::Debug for Hooked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hooked({:?})", self.inner)
    }
}

impl Hooked {
    /// Without any hook.
    pub fn new(inner: Arc<dyn Backend>) -> Arc<Hooked> {
        Arc::new(Hooked {
            inner,
            actions: Mutex::default(),
        })
    }

    /// Before the next call of this kind reaches the backend.
    pub fn before(&self, call: Call, action: impl FnOnce() + Send + 'static) {
        self.add(call, false, Box::new(action));
    }

    /// After the next call of this kind, before the pool hears of its outcome.
    pub fn after(&self, call: Call, action: impl FnOnce() + Send + 'static) {
        self.add(call, true, Box::new(action));
    }

    fn add(&self, call: Call, after: bool, action: Action) {
        let mut actions = self.actions.lock();
        actions.push((call, after, action));
    }

    /// Have all actions run?
    pub fn is_done(&self) -> bool {
        self.actions.lock().is_empty()
    }

    fn fire(&self, call: Call, after: bool) {
        let mut actions = self.actions.lock();
        let place = actions
            .iter()
            .position(|action| (action.0, action.1) == (call, after));
        let action = place.map(|place| actions.remove(place).2);
        drop(actions);
        if let Some(action) = action {
            action();
        }
    }

    fn around<T>(&self, call: Call, made: impl FnOnce() -> T) -> T {
        self.fire(call, false);
        let answer = made();
        self.fire(call, true);
        answer
    }
}

impl Backend for Hooked {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn granularity(&self) -> u64 {
        self.inner.granularity()
    }

    fn mapping_limit(&self) -> u64 {
        self.inner.mapping_limit()
    }

    fn mappings_of_a_page(&self) -> usize {
        self.inner.mappings_of_a_page()
    }

    fn usable(&self) -> bool {
        self.inner.usable()
    }

    fn reserve(&self, bytes: u64) -> Result<Addr, BackendError> {
        self.around(Call::Reserve, || self.inner.reserve(bytes))
    }

    fn unreserve(&self, at: Addr, bytes: u64) -> Result<(), BackendError> {
        self.around(Call::Unreserve, || self.inner.unreserve(at, bytes))
    }

    fn create(&self, bytes: u64) -> Result<PageHandle, BackendError> {
        self.around(Call::Create, || self.inner.create(bytes))
    }

    fn release(&self, page: PageHandle, bytes: u64) -> Result<(), BackendError> {
        self.around(Call::Release, || self.inner.release(page, bytes))
    }

    fn map(&self, at: Addr, page: PageHandle, bytes: u64) -> Result<(), BackendError> {
        self.around(Call::Map, || self.inner.map(at, page, bytes))
    }

    fn unmap(&self, at: Addr, bytes: u64) -> Result<(), BackendError> {
        self.around(Call::Unmap, || self.inner.unmap(at, bytes))
    }

    fn timeline(&self, stream: StreamHandle) -> Result<Timeline, BackendError> {
        self.around(Call::Timeline, || self.inner.timeline(stream))
    }

    fn is_inert(&self, stream: StreamId) -> bool {
        self.inner.is_inert(stream)
    }

    fn has_work(&self, stream: StreamHandle, line: Timeline) -> Option<bool> {
        self.around(Call::Query, || self.inner.has_work(stream, line))
    }

    fn record(&self, stream: StreamHandle) -> Result<Event, BackendError> {
        self.around(Call::Record, || self.inner.record(stream))
    }

    fn query(&self, event: Event) -> Result<bool, BackendError> {
        self.around(Call::Query, || self.inner.query(event))
    }

    fn wait(&self, stream: StreamHandle, event: Event) -> Result<(), BackendError> {
        self.around(Call::Wait, || self.inner.wait(stream, event))
    }

    fn synchronize(&self, event: Event) -> Result<(), BackendError> {
        self.around(Call::Synchronize, || self.inner.synchronize(event))
    }

    fn watch_graph(&self, stream: StreamHandle, capture: CaptureId) -> Result<(), BackendError> {
        self.inner.watch_graph(stream, capture)
    }

    fn graphs_gone(&self, each: &mut dyn FnMut(CaptureId)) {
        self.inner.graphs_gone(each);
    }

    fn forget(&self, event: Event) {
        self.inner.forget(event);
    }

    fn synchronize_all(&self) -> Result<(), BackendError> {
        self.around(Call::SynchronizeAll, || self.inner.synchronize_all())
    }

    fn pages_have_addresses(&self) -> bool {
        self.inner.pages_have_addresses()
    }

    fn blocks_in_one_page(&self) -> bool {
        self.inner.blocks_in_one_page()
    }

    fn device_number(&self) -> Result<[u64; 2], BackendError> {
        self.around(Call::DeviceNumber, || self.inner.device_number())
    }

    fn export(&self, page: PageHandle) -> Result<OwnedFd, BackendError> {
        self.around(Call::Export, || self.inner.export(page))
    }

    fn import(&self, file: OwnedFd, bytes: u64) -> Result<PageHandle, BackendError> {
        self.around(Call::Import, || self.inner.import(file, bytes))
    }

    fn create_at(&self, bytes: u64) -> Result<(Addr, PageHandle), BackendError> {
        self.around(Call::Create, || self.inner.create_at(bytes))
    }
}
