//! Physical pages and where they are mapped.
//!
//! A page (one handle of the backend) may be mapped at several addresses. Each byte of it is *at home* at one
//! of them: there it is part of a block or a free extent, at the other addresses it is part of a hole. Mostly a
//! page is at home as a whole; where two partly used pages were joined, its parts are at home at different
//! addresses, and it is *split*.
//!
//! A mapping where nothing is at home is *dormant*. It is kept so that the page can be at home there again
//! without a driver call, and because queued work may still use the address. Which work that is, the mapping
//! remembers.
//!
//! Invariants: the bytes at home in a page's mappings add up to the page; dormant mappings, and no others, are
//! listed, oldest first; split pages are listed, and those with as many mappings as they may have.
//! No lock of their own: the heap's.

use super::node::NIL;
use crate::base::units::PageHandle;

/// Index of a page.
pub type PageId = u32;
/// Index of a mapping.
pub type MappingId = u32;

/// Mappings kept for each page, on average.
const MAPPINGS_PER_PAGE: u64 = 64;

/// A piece of physical memory.
#[derive(Debug)]
pub struct Page {
    /// The backend's name for it.
    pub handle: PageHandle,
    /// Bytes; a multiple of the slot.
    pub bytes: u64,
    /// All its mappings.
    pub mappings: Vec<MappingId>,
    /// Those that are not dormant.
    pub homes: Vec<MappingId>,
    /// Set by a planner that has spoken for the page.
    pub taken: bool,
}

impl Page {
    /// Is it at home at one address, and that is not the one where it was mapped first?
    pub fn is_away(&self) -> bool {
        self.homes.len() == 1 && self.homes[0] != self.mappings[0]
    }
}

/// A page at an address.
#[derive(Debug)]
pub struct Mapping {
    /// First address.
    pub at: u64,
    /// The page.
    pub page: PageId,
    /// Bytes at home here.
    pub home: u64,
    /// Streams whose work may still use parts of this address range that are not at home here any more, and
    /// how far each must have come.
    pub users: Vec<(u32, u64)>,
    /// Slabs have been there.
    pub slabs: bool,
    older: MappingId,
    newer: MappingId,
}

/// All pages of a pool.
#[derive(Debug)]
pub struct Pages {
    pages: Vec<Option<Page>>,
    spare_pages: Vec<PageId>,
    mappings: Vec<Option<Mapping>>,
    spare_mappings: Vec<MappingId>,
    oldest: MappingId,
    newest: MappingId,
    /// Pages without any mapping, left by a call that failed; counted as idle.
    pub loose: Vec<PageId>,
    /// Pages that are, or were, at home at more than one address.
    pub split: Vec<PageId>,
    /// How many mappings a page may have.
    most: usize,
    /// Pages that have as many.
    pub full: Vec<PageId>,
    /// Mappings that exist.
    pub mapped: u64,
    /// Mappings made and removed.
    pub changes: Changes,
    /// Bytes of all pages.
    pub bytes: u64,
}

/// How often mappings were made, and removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Made.
    pub made: u64,
    /// Removed.
    pub removed: u64,
}

impl Changes {
    /// Both.
    pub fn all(self) -> u64 {
        self.made + self.removed
    }
}

impl Default for Pages {
    fn default() -> Pages {
        Pages {
            pages: Vec::new(),
            spare_pages: Vec::new(),
            mappings: Vec::new(),
            spare_mappings: Vec::new(),
            oldest: NIL,
            newest: NIL,
            loose: Vec::new(),
            split: Vec::new(),
            most: usize::MAX,
            full: Vec::new(),
            mapped: 0,
            changes: Changes::default(),
            bytes: 0,
        }
    }
}

impl Pages {
    /// Mappings that are kept at most.
    pub fn mapping_budget(&self) -> u64 {
        self.count().max(64) * MAPPINGS_PER_PAGE
    }

    /// No page is to have more mappings than this. To be called before there is one.
    pub fn limit_mappings(&mut self, most: usize) {
        debug_assert!(self.pages.is_empty());
        self.most = most;
    }

    /// How many mappings a page may have.
    pub fn most_mappings(&self) -> usize {
        self.most
    }

    /// Has this one as many?
    pub fn is_full(&self, page: PageId) -> bool {
        self.page(page).mappings.len() >= self.most
    }

    /// Pages that exist.
    pub fn count(&self) -> u64 {
        (self.pages.len() - self.spare_pages.len()) as u64
    }

    /// A new page, mapped nowhere.
    pub fn add(&mut self, handle: PageHandle, bytes: u64) -> PageId {
        let page = Page {
            handle,
            bytes,
            mappings: Vec::new(),
            homes: Vec::new(),
            taken: false,
        };
        self.bytes += bytes;
        match self.spare_pages.pop() {
            Some(id) => {
                self.pages[id as usize] = Some(page);
                id
            }
            None => {
                self.pages.push(Some(page));
                self.pages.len() as u32 - 1
            }
        }
    }

    /// Forgets a page that has no mappings left.
    pub fn remove(&mut self, id: PageId) -> Page {
        let page = self.pages[id as usize].take().expect("a page");
        assert!(page.mappings.is_empty());
        self.bytes -= page.bytes;
        self.spare_pages.push(id);
        page
    }

    /// The page.
    pub fn page(&self, id: PageId) -> &Page {
        self.pages[id as usize].as_ref().expect("a page")
    }

    /// The page.
    pub fn page_mut(&mut self, id: PageId) -> &mut Page {
        self.pages[id as usize].as_mut().expect("a page")
    }

    /// The mapping.
    pub fn mapping(&self, id: MappingId) -> &Mapping {
        self.mappings[id as usize].as_ref().expect("a mapping")
    }

    fn mapping_mut(&mut self, id: MappingId) -> &mut Mapping {
        self.mappings[id as usize].as_mut().expect("a mapping")
    }

    /// There are slabs where a mapping is.
    pub fn note_slabs(&mut self, id: MappingId) {
        self.mapping_mut(id).slabs = true;
    }

    /// The page behind a mapping.
    pub fn page_of(&self, id: MappingId) -> &Page {
        self.page(self.mapping(id).page)
    }

    /// First address and bytes of a mapping.
    pub fn span(&self, id: MappingId) -> (u64, u64) {
        (self.mapping(id).at, self.page_of(id).bytes)
    }

    /// Is nothing at home here?
    pub fn is_dormant(&self, id: MappingId) -> bool {
        self.mapping(id).home == 0
    }

    /// A page was mapped at `at`. Nothing is at home there yet.
    pub fn add_mapping(&mut self, page: PageId, at: u64) -> MappingId {
        let mapping = Some(Mapping {
            at,
            page,
            home: 0,
            users: Vec::new(),
            slabs: false,
            older: NIL,
            newer: NIL,
        });
        let id = match self.spare_mappings.pop() {
            Some(id) => {
                self.mappings[id as usize] = mapping;
                id
            }
            None => {
                self.mappings.push(mapping);
                self.mappings.len() as u32 - 1
            }
        };
        self.mapped += 1;
        self.changes.made += 1;
        self.page_mut(page).mappings.push(id);
        if self.is_full(page) {
            self.full.push(page);
        }
        self.list(id);
        id
    }

    /// Forgets a dormant mapping.
    pub fn remove_mapping(&mut self, id: MappingId) {
        debug_assert!(self.is_dormant(id));
        self.unlist(id);
        let page = self.mapping(id).page;
        if self.is_full(page) {
            self.full.retain(|&full| full != page);
        }
        self.page_mut(page).mappings.retain(|&other| other != id);
        self.mappings[id as usize] = None;
        self.spare_mappings.push(id);
        self.mapped -= 1;
        self.changes.removed += 1;
    }

    /// `bytes` of the page left this mapping. Work of `user.0` up to `user.1` may still use them there; of none, no work.
    pub fn leave_home(&mut self, id: MappingId, bytes: u64, user: Option<(u32, u64)>) {
        let mapping = self.mapping_mut(id);
        mapping.home -= bytes;
        if let Some((stream, seq)) = user {
            match mapping.users.iter_mut().find(|other| other.0 == stream) {
                Some(other) => other.1 = other.1.max(seq),
                None => mapping.users.push((stream, seq)),
            }
        }
        if mapping.home == 0 {
            let page = mapping.page;
            self.page_mut(page).homes.retain(|&home| home != id);
            self.list(id);
        }
    }

    /// Work of a stream up to that number may use any page in any of its mappings.
    pub fn used_everywhere(&mut self, stream: u32, seq: u64) {
        for mapping in self.mappings.iter_mut().flatten() {
            mapping.users.retain(|user| user.0 != stream);
            mapping.users.push((stream, seq));
        }
    }

    /// `bytes` of the page are at home in this mapping.
    pub fn come_home(&mut self, id: MappingId, bytes: u64) {
        let page = self.mapping(id).page;
        if self.is_dormant(id) {
            self.unlist(id);
            self.page_mut(page).homes.push(id);
        }
        let mapping = self.mapping_mut(id);
        mapping.home += bytes;
        let part = mapping.home;
        if part < self.page(page).bytes && !self.split.contains(&page) {
            self.split.push(page);
        }
    }

    fn list(&mut self, id: MappingId) {
        let newest = std::mem::replace(&mut self.newest, id);
        let mapping = self.mapping_mut(id);
        (mapping.older, mapping.newer) = (newest, NIL);
        if newest == NIL {
            self.oldest = id;
        } else {
            self.mapping_mut(newest).newer = id;
        }
    }

    fn unlist(&mut self, id: MappingId) {
        let (older, newer) = (self.mapping(id).older, self.mapping(id).newer);
        if older == NIL {
            self.oldest = newer;
        } else {
            self.mapping_mut(older).newer = newer;
        }
        if newer == NIL {
            self.newest = older;
        } else {
            self.mapping_mut(newer).older = older;
        }
    }

    /// Dormant mappings, oldest first.
    pub fn dormant(&self) -> impl Iterator<Item = MappingId> + '_ {
        let mut id = self.oldest;
        std::iter::from_fn(move || {
            (id != NIL).then(|| {
                let this = id;
                id = self.mapping(this).newer;
                this
            })
        })
    }

    /// All pages.
    pub fn iter(&self) -> impl Iterator<Item = (PageId, &Page)> {
        self.pages
            .iter()
            .enumerate()
            .filter_map(|(id, page)| Some((id as u32, page.as_ref()?)))
    }
}
