// SPDX-License-Identifier: GPL-2.0-only
//! Coupled tuning: the best numbers and places of threads and pages for a program on this machine, found by running it.
//!
//! | file | concern |
//! |---|---|
//! | `space` | which configurations there are |
//! | `search` | which of them is the fastest, with few runs |
//! | `store`, `lock` | runs outlive the search, and are of one at a time |
//! | `plan` | what one run is under, region by region |
//! | `places` | where threads and pages of a run are put |
//! | `launch`, `inherited`, `wait`, `process`, `seat` | one run with threads and pages in their places from birth |
//! | `births`, `call_filter`, `inject` | memory that is bound as it is allocated |
//! | `page_use`, `page_map`, `mapping`, `call_site`, `mapped` | who uses which page, and where each goes, by names that hold from run to run |
//! | `first_touch`, `chance` | where the main thread had initialised memory, and what chance makes of that |
//! | `regions`, `loads`, `stop_cost`, `breakpoint`, `call`, `symbols` | where its parallel regions begin and end, and what is done there |
//! | `apart`, `placed`, `conflicts`, `one_by_one` | what each region wants, and what all of them together get |
//! | `criu`, `page_places` | checkpoints of entries of regions, and where their pages are |
//! | `remote` | runs on other machines |
//! | `session`, `race`, `part` | a search from its first run to its result, of whole runs or their beginnings |
//! | `subject`, `surroundings`, `executable`, `rights` | what makes runs comparable |
//! | `tuned`, `axes`, `report`, `shell` | the result as a file, and for eyes |
//! | `tables` | what a search makes of recorded runs |

pub mod apart;
pub mod axes;
pub mod births;
mod breakpoint;
mod call;
#[cfg(target_arch = "x86_64")]
mod call_filter;
mod call_site;
pub mod chance;
pub mod conflicts;
pub mod criu;
pub mod executable;
pub mod first_touch;
mod hosts;
pub mod inherited;
#[cfg(target_arch = "x86_64")]
mod inject;
pub mod launch;
mod loads;
pub mod lock;
mod mapped;
pub mod mapping;
pub mod one_by_one;
pub mod page_map;
mod page_places;
pub mod page_use;
mod part;
mod placed;
pub mod placer;
pub mod places;
pub mod plan;
pub mod process;
mod race;
pub mod regions;
pub mod remote;
pub mod report;
pub mod rights;
pub mod search;
pub mod seat;
pub mod session;
pub mod shell;
pub mod space;
mod stop_cost;
pub mod store;
pub mod subject;
pub mod surroundings;
mod symbols;
pub mod tables;
#[cfg(test)]
mod testing;
pub mod tuned;
mod wait;
