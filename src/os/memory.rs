//! What the allocator keeps (mallopt(3), malloc_trim(3)).
//!
//! glibc gives each thread a heap of its own and keeps what was freed in it. Operations run on many short-lived
//! threads, so without this a driver that once listed ten thousand volumes stays several times as large for good.
#![allow(unsafe_code, reason = "mallopt and malloc_trim have no safe wrapper")]

/// Few heaps, and large blocks go back at once. For the start of the program, before there are other threads.
pub fn limit_malloc_arenas() {
    #[cfg(target_env = "gnu")]
    for (parameter, value) in [(libc::M_ARENA_MAX, 2), (libc::M_TRIM_THRESHOLD, 128 << 10), (libc::M_MMAP_THRESHOLD, 128 << 10)] {
        // SAFETY: mallopt takes plain numbers; one that it does not know it refuses.
        if unsafe { libc::mallopt(parameter, value) } == 0 {
            tracing::debug!(parameter, value, "mallopt refuses");
        }
    }
}

/// Gives free memory back to the kernel. Takes about a millisecond for some ten MiB; other threads may allocate meanwhile.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes a plain number and only gives back what is free.
    unsafe {
        libc::malloc_trim(0);
    }
}
