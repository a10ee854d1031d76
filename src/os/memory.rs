//! Memory that stays resident though nothing uses it: what the allocator keeps (mallopt(3), malloc_trim(3)), and pages of the program that
//! only its start or a rare call needed (madvise(2)).
//!
//! glibc gives each thread a heap of its own and keeps what was freed in it. Operations run on many short-lived
//! threads, so without this a driver that once listed ten thousand volumes stays several times as large for good.
#![allow(unsafe_code, reason = "mallopt, malloc_trim, dl_iterate_phdr and madvise have no safe wrapper")]

use std::ffi::{c_int, c_void};

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

/// Gives free memory back to the kernel, and unmaps the pages of the program's code and constants: they stay in the page cache, and those
/// that are used are mapped again, 16 at a time, by the fault of the first use. Takes about a millisecond for some ten MiB; other threads
/// may run and allocate meanwhile.
pub fn give_back() {
    // SAFETY: the callback takes what dl_iterate_phdr(3) gives it, and keeps none of it.
    unsafe { libc::dl_iterate_phdr(Some(unmap_program), std::ptr::null_mut()) };
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes a plain number and only gives back what is free.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// The first that dl_iterate_phdr(3) shows is the program itself.
///
/// # Safety
/// `info` is that of an object that is loaded.
unsafe extern "C" fn unmap_program(info: *mut libc::dl_phdr_info, _size: usize, _data: *mut c_void) -> c_int {
    // SAFETY: as the caller says; the headers are a part of the loaded program.
    let (base, headers) =
        unsafe { ((*info).dlpi_addr, std::slice::from_raw_parts((*info).dlpi_phdr, (*info).dlpi_phnum.into())) };
    let page = rustix::param::page_size() as u64;
    // What was ever writable has changes of its own, among them all relocations, which madvise would throw away.
    let unchanged = |header: &&libc::Elf64_Phdr| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0;
    for header in headers.iter().filter(unchanged) {
        // Whole pages of the segment alone: its last one may be the first of another.
        let start = (base + header.p_vaddr).next_multiple_of(page);
        let end = (base + header.p_vaddr + header.p_memsz) / page * page;
        if start < end {
            // SAFETY: a private mapping of a file that is never written to: what is read of it again is the same.
            unsafe { libc::madvise(start as *mut c_void, (end - start) as usize, libc::MADV_DONTNEED) };
        }
    }
    1
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// The mappings of the program's own code, and how much of them is resident.
    fn code() -> (Vec<std::ops::Range<usize>>, u64) {
        let program = fs::read_link("/proc/self/exe").expect("a program");
        let (mut ranges, mut resident, mut within) = (Vec::new(), 0, false);
        for line in fs::read_to_string("/proc/self/smaps").expect("smaps").lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let [range, rights, _, _, _, path] = words[..] {
                within = rights == "r-xp" && Path::new(path) == program;
                if within {
                    let (start, end) = range.split_once('-').expect("a range");
                    let address = |text| usize::from_str_radix(text, 16).expect("an address");
                    ranges.push(address(start)..address(end));
                }
            } else if let (true, ["Rss:", kib, _]) = (within, &words[..]) {
                resident += kib.parse::<u64>().expect("a number") << 10;
            }
        }
        (ranges, resident)
    }

    #[test]
    fn code_that_nothing_uses_is_not_resident() {
        let (ranges, _) = code();
        for address in ranges.into_iter().flat_map(|range| range.step_by(4096)) {
            // SAFETY: a page that smaps shows as readable.
            unsafe { std::ptr::read_volatile(address as *const u8) };
        }
        let (_, all) = code();
        give_back();
        let (_, left) = code();
        assert!(left < all / 2, "{left} of {all} bytes");
    }
}
