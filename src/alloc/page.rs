//! Physical pages and where they are mapped.
//!
//! A page (one handle of the backend) may be mapped at several addresses. At most one of its mappings is
//! *active*: blocks lie only there. The others are *dormant*: kept so that the page can become usable there
//! again without a driver call, and because queued work may still use the old address. A dormant mapping
//! remembers which work that is.
//!
//! Invariants: a page's active mapping is one of its mappings; each mapping is in exactly one page's list;
//! dormant mappings are listed oldest first.
//! No lock of their own: the heap's.

use super::node::NIL;
use crate::base::units::PageHandle;

/// Index of a page.
pub type PageId = u32;
/// Index of a mapping.
pub type MappingId = u32;

/// A piece of physical memory.
#[derive(Debug)]
pub struct Page {
    /// The backend's name for it.
    pub handle: PageHandle,
    /// Bytes; a multiple of the slot.
    pub bytes: u64,
    /// Where blocks lie; NIL while a miss moves the page.
    pub active: MappingId,
    /// All its mappings.
    pub mappings: Vec<MappingId>,
    /// Set by a planner that has spoken for the page.
    pub taken: bool,
}

/// A page at an address.
#[derive(Debug)]
pub struct Mapping {
    /// First address.
    pub at: u64,
    /// The page.
    pub page: PageId,
    /// When dormant: the stream whose work may still use this address, and how far it must have come.
    pub owner: u32,
    /// See `owner`.
    pub seq: u64,
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
    /// Mappings that exist.
    pub mapped: u64,
    /// Bytes of all pages.
    pub bytes: u64,
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
            mapped: 0,
            bytes: 0,
        }
    }
}

impl Pages {
    /// A new page, mapped nowhere.
    pub fn add(&mut self, handle: PageHandle, bytes: u64) -> PageId {
        let page = Page {
            handle,
            bytes,
            active: NIL,
            mappings: Vec::new(),
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

    /// The page behind a mapping.
    pub fn page_of(&self, id: MappingId) -> &Page {
        self.page(self.mapping(id).page)
    }

    /// Is this the mapping that blocks lie in?
    pub fn is_active(&self, id: MappingId) -> bool {
        self.page_of(id).active == id
    }

    /// A page was mapped at `at`, and is active there.
    pub fn add_mapping(&mut self, page: PageId, at: u64) -> MappingId {
        let mapping = Some(Mapping {
            at,
            page,
            owner: 0,
            seq: 0,
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
        let page = self.page_mut(page);
        debug_assert_eq!(page.active, NIL);
        page.active = id;
        page.mappings.push(id);
        id
    }

    /// Forgets a mapping that is not active.
    pub fn remove_mapping(&mut self, id: MappingId) {
        self.unlist(id);
        let page = self.mapping(id).page;
        let page = self.page_mut(page);
        debug_assert_ne!(page.active, id);
        page.mappings.retain(|&other| other != id);
        self.mappings[id as usize] = None;
        self.spare_mappings.push(id);
        self.mapped -= 1;
    }

    /// The page's active mapping becomes dormant, with work of `owner` up to `seq` still using it.
    pub fn rest(&mut self, page: PageId, owner: u32, seq: u64) -> MappingId {
        let id = std::mem::replace(&mut self.page_mut(page).active, NIL);
        let newest = std::mem::replace(&mut self.newest, id);
        let mapping = self.mapping_mut(id);
        (mapping.owner, mapping.seq, mapping.older, mapping.newer) = (owner, seq, newest, NIL);
        if newest == NIL {
            self.oldest = id;
        } else {
            self.mapping_mut(newest).newer = id;
        }
        id
    }

    /// A dormant mapping becomes its page's active one.
    pub fn wake(&mut self, id: MappingId) {
        self.unlist(id);
        let page = self.mapping(id).page;
        let page = self.page_mut(page);
        debug_assert_eq!(page.active, NIL);
        page.active = id;
    }

    fn unlist(&mut self, id: MappingId) {
        let (older, newer) = (self.mapping(id).older, self.mapping(id).newer);
        if older != NIL {
            self.mapping_mut(older).newer = newer;
        } else if self.oldest == id {
            self.oldest = newer;
        }
        if newer != NIL {
            self.mapping_mut(newer).older = older;
        } else if self.newest == id {
            self.newest = older;
        }
        let mapping = self.mapping_mut(id);
        (mapping.older, mapping.newer) = (NIL, NIL);
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
