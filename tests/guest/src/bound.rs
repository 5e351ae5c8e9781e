// SPDX-License-Identifier: GPL-2.0-only
//! Threads that are bound to CPUs by who makes them, before they run.

use std::ffi::c_void;
use std::{mem, ptr};

/// What a thread does.
type Body = Box<dyn FnOnce() + Send>;

/// A thread that was bound at its birth. Dropping it waits for its end.
pub struct Bound(libc::pthread_t);

impl Bound {
    /// Starts one that may run on `cpus` only, until it says otherwise, and ends by itself.
    ///
    /// # Panics
    /// If the C library refuses.
    pub fn start(cpus: &[u32], body: impl FnOnce() + Send + 'static) -> Self {
        let body: Body = Box::new(body);
        let argument = Box::into_raw(Box::new(body));
        // SAFETY: both are plain data that the C library fills; the set lives through the calls, and `run` takes the argument over.
        unsafe {
            let (mut set, mut attributes): (libc::cpu_set_t, libc::pthread_attr_t) = (mem::zeroed(), mem::zeroed());
            cpus.iter().for_each(|&cpu| libc::CPU_SET(cpu as usize, &mut set));
            assert_eq!(libc::pthread_attr_init(&mut attributes), 0);
            assert_eq!(libc::pthread_attr_setaffinity_np(&mut attributes, size_of_val(&set), &set), 0);
            let mut thread = mem::zeroed();
            let made = libc::pthread_create(&mut thread, &attributes, run, argument.cast());
            assert_eq!(made, 0, "pthread_create: {}", std::io::Error::from_raw_os_error(made));
            libc::pthread_attr_destroy(&mut attributes);
            Self(thread)
        }
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        // SAFETY: it was made joinable, and nobody else joins it.
        assert_eq!(unsafe { libc::pthread_join(self.0, ptr::null_mut()) }, 0);
    }
}

extern "C" fn run(argument: *mut c_void) -> *mut c_void {
    // SAFETY: it comes from Box::into_raw in `start`, once.
    let body = unsafe { Box::from_raw(argument.cast::<Body>()) };
    body();
    ptr::null_mut()
}
