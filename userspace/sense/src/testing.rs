// SPDX-License-Identifier: GPL-2.0-only
//! Machines for tests.

use std::io::{self, ErrorKind, Write as _};
use std::path::Path;

use tandem_policies::model::{CpuId, LatencySource, Node, NodeId, PerNode, Topology};

use crate::fresh_pages::FreshPages;

/// Says that the test that calls it has seen nothing here. It counts as passed all the same, so this goes past what keeps the
/// words of passed tests back.
pub(crate) fn unseen(why: &str) {
    let thread = std::thread::current();
    let _ = writeln!(io::stderr(), "{} saw nothing: {why}", thread.name().unwrap_or("a test"));
}

/// What the kernel keeps from this user, or does not have; other errors are none that a test may pass over.
pub(crate) fn withheld<T>(result: io::Result<T>) -> Result<T, String> {
    match result {
        Ok(value) => Ok(value),
        Err(error)
            if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::NotFound | ErrorKind::Unsupported)
                || error.raw_os_error() == Some(libc::ENOSYS) =>
        {
            Err(error.to_string())
        }
        Err(error) => panic!("{error}"),
    }
}

/// Pages of 2 MiB, of a kernel that has them.
pub(crate) fn large_pages(pages: usize) -> Option<FreshPages> {
    let there = Path::new("/sys/kernel/mm/transparent_hugepage").exists();
    there.then(|| FreshPages::large(pages).expect("this kernel has transparent huge pages"))
}

/// `nodes` nodes of one CPU each; remote memory is twice as far. Ids are 0, 2, 4, ...
pub(crate) fn topology(nodes: usize) -> Topology {
    let node = |at: usize| {
        let distance = PerNode::from_fn(nodes, |to| if to.0 == at { 10 } else { 20 });
        Node {
            id: NodeId(at as u32 * 2),
            cpus: vec![CpuId(at as u32)],
            llcs: vec![vec![CpuId(at as u32)]],
            slow_cpus: Default::default(),
            memory_pages: 1 << 20,
            free_pages: 1 << 19,
            latency_ns: Topology::latency_from_distance(&distance),
            distance,
        }
    };
    Topology::new((0..nodes).map(node).collect(), LatencySource::Distance).expect("a machine")
}
