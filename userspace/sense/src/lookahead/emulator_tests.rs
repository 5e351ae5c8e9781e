// SPDX-License-Identifier: GPL-2.0-only
//! Machine code of this process, run forward by the emulator.

use iced_x86::code_asm::*;

use super::*;

const K: u32 = 256;

/// A page-aligned buffer of this process.
struct Buffer {
    start: *mut u8,
    bytes: usize,
}

impl Buffer {
    fn new(bytes: usize) -> Self {
        // SAFETY: a new anonymous mapping.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(start, libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
        Self { start: start.cast(), bytes }
    }

    fn address(&self) -> u64 {
        self.start as u64
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.bytes);
        // SAFETY: inside the mapping, which nobody else uses.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(at), bytes.len()) }
    }

    fn word(&self, at: usize) -> u64 {
        // SAFETY: inside the mapping.
        unsafe { self.start.add(at).cast::<u64>().read_volatile() }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`.
        unsafe { libc::munmap(self.start.cast(), self.bytes) };
    }
}

struct Bench {
    emulator: Emulator,
    code: Buffer,
    data: Buffer,
    stack: Buffer,
    now_ns: u64,
    fs_base: Option<u64>,
}

impl Bench {
    fn new() -> Self {
        Self {
            emulator: Emulator::new(Reach { instructions: K, returns: u32::MAX }, CopyLimits::default()),
            code: Buffer::new(8192),
            data: Buffer::new(1 << 20),
            stack: Buffer::new(65536),
            now_ns: 1_000_000_000,
            fs_base: None,
        }
    }

    fn assemble(&mut self, write: impl FnOnce(&mut CodeAssembler)) {
        let mut assembler = CodeAssembler::new(64).unwrap();
        write(&mut assembler);
        let bytes = assembler.assemble(self.code.address()).unwrap();
        self.code.write(0, &bytes);
    }

    /// Runs with rdi = the data buffer.
    fn run(&mut self) -> (Run, Vec<Touch>) {
        self.now_ns += 20_000_000;
        let mut general = [0; 16];
        general[7] = self.data.address();
        general[STACK_POINTER] = self.stack.address() + 32768;
        let registers = Registers { general, ip: self.code.address(), flags: 0x202 };
        let me = ProcessId(std::process::id());
        let run = self.emulator.run(me, &registers, self.fs_base, self.now_ns);
        (run, self.emulator.touches().to_vec())
    }
}

fn load(address: u64, bytes: u16) -> Touch {
    Touch { address, bytes, store: false }
}

fn store(address: u64, bytes: u16) -> Touch {
    Touch { address, bytes, store: true }
}

#[test]
fn loop_gives_exactly_its_addresses() {
    let mut bench = Bench::new();
    bench.assemble(|a| {
        let mut top = a.create_label();
        a.xor(ecx, ecx).unwrap();
        a.set_label(&mut top).unwrap();
        a.mov(rax, qword_ptr(rdi + rcx * 8)).unwrap();
        a.mov(dword_ptr(rdi + rcx * 8 + 65536), eax).unwrap();
        a.add(rcx, 512).unwrap();
        a.cmp(rcx, 512 * 10).unwrap();
        a.jb(top).unwrap();
        a.syscall().unwrap();
    });
    let data = bench.data.address();
    let expected: Vec<_> =
        (0..10).flat_map(|i| [load(data + i * 4096, 8), store(data + i * 4096 + 65536, 4)]).collect();
    for _ in 0..3 {
        let (run, touches) = bench.run();
        assert_eq!(run, Run { stop: StopReason::Syscall, instructions: 51, stepped_over: 0 });
        assert_eq!(touches, expected);
    }
}

#[test]
fn run_ends_at_the_instruction_limit() {
    let mut bench = Bench::new();
    bench.assemble(|a| {
        let mut top = a.create_label();
        a.set_label(&mut top).unwrap();
        a.inc(rax).unwrap();
        a.jmp(top).unwrap();
    });
    let (run, touches) = bench.run();
    assert_eq!((run.stop, run.instructions), (StopReason::Limit, K));
    assert!(touches.is_empty());
}

/// Stores to every line of a page tell no more than some do, wherever the stack is used meanwhile; a run through many pages goes on.
#[test]
fn run_ends_where_it_only_comes_back() {
    for (stride, expected) in [(64, (StopReason::Returned, 21)), (4096, (StopReason::Limit, K as usize / 4))] {
        let mut bench = Bench::new();
        bench.emulator = Emulator::new(Reach { instructions: K, returns: 20 }, CopyLimits::default());
        bench.assemble(|a| {
            let mut top = a.create_label();
            a.set_label(&mut top).unwrap();
            a.mov(dword_ptr(rdi), eax).unwrap();
            a.mov(rbx, qword_ptr(rsp)).unwrap();
            a.add(rdi, stride).unwrap();
            a.jmp(top).unwrap();
        });
        let (run, touches) = bench.run();
        let stores = touches.iter().filter(|touch| touch.store).count();
        assert_eq!((run.stop, stores), expected, "every {stride} bytes");
    }
}

#[test]
fn what_is_stored_across_words_is_read_back() {
    let mut bench = Bench::new();
    let data = bench.data.address();
    bench.assemble(|a| {
        a.mov(rax, data + 4096).unwrap();
        a.mov(qword_ptr(rdi + 5), rax).unwrap();
        a.mov(word_ptr(rdi + 7), 0).unwrap();
        a.mov(rbx, qword_ptr(rdi + 5)).unwrap();
        a.mov(ecx, dword_ptr(rbx)).unwrap();
        a.syscall().unwrap();
    });
    let (run, touches) = bench.run();
    let mut bytes = (data + 4096).to_le_bytes();
    bytes[2..4].fill(0);
    let read = u64::from_le_bytes(bytes);
    assert_eq!((run.stop, touches.last().copied()), (StopReason::Syscall, Some(load(read, 4))));
}

#[test]
fn pointers_are_followed() {
    let mut bench = Bench::new();
    let data = bench.data.address();
    for at in 0..8_usize {
        bench.data.write(at * 8192, &(data + (at as u64 + 1) * 8192).to_le_bytes());
    }
    bench.assemble(|a| {
        for _ in 0..8 {
            a.mov(rdi, qword_ptr(rdi)).unwrap();
        }
        a.syscall().unwrap();
    });
    let (run, touches) = bench.run();
    assert_eq!(run.stop, StopReason::Syscall);
    assert_eq!(touches, (0..8).map(|at| load(data + at * 8192, 8)).collect::<Vec<_>>());
}

#[test]
fn vector_code_is_stepped_over_with_its_operand() {
    let mut bench = Bench::new();
    bench.assemble(|a| {
        a.mov(ecx, 3).unwrap();
        a.vmovdqu(ymm1, ymmword_ptr(rdi + rcx * 8 + 64)).unwrap();
        a.vpaddd(ymm2, ymm1, ymm1).unwrap();
        a.vmovdqu64(zmmword_ptr(rdi + 4096), zmm2).unwrap();
        a.vzeroupper().unwrap();
        a.mov(rax, qword_ptr(rdi + 8)).unwrap();
        a.syscall().unwrap();
    });
    let (run, touches) = bench.run();
    let data = bench.data.address();
    assert_eq!(touches, [load(data + 24 + 64, 32), store(data + 4096, 64), load(data + 8, 8)]);
    assert_eq!(run, Run { stop: StopReason::Syscall, instructions: 6, stepped_over: 4 });
}

#[test]
fn unknown_address_stops_the_run() {
    let mut bench = Bench::new();
    bench.assemble(|a| {
        a.vmovq(rax, xmm3).unwrap();
        a.lea(rbx, qword_ptr(rax + 8)).unwrap();
        a.mov(rcx, qword_ptr(rdi)).unwrap();
        a.mov(rcx, qword_ptr(rbx)).unwrap();
        a.syscall().unwrap();
    });
    let (run, touches) = bench.run();
    assert_eq!(run.stop, StopReason::UnknownAddress);
    assert_eq!(touches, [load(bench.data.address(), 8)]);
}

#[test]
fn unknown_flags_stop_a_branch_and_known_ones_do_not() {
    let mut bench = Bench::new();
    let mut run_with = |known: bool| {
        bench.assemble(|a| {
            let mut out = a.create_label();
            a.movq(rax, xmm0).unwrap();
            a.test(rax, rax).unwrap();
            if known {
                a.cmp(rdi, 0).unwrap();
            }
            a.je(out).unwrap();
            a.mov(rcx, qword_ptr(rdi)).unwrap();
            a.set_label(&mut out).unwrap();
            a.syscall().unwrap();
        });
        bench.now_ns += 2_000_000_000;
        bench.run()
    };
    assert_eq!(run_with(false).0.stop, StopReason::UnknownBranch);
    let (run, touches) = run_with(true);
    assert_eq!((run.stop, touches.len()), (StopReason::Syscall, 1));
}

#[test]
fn unknown_values_are_followed_through_memory() {
    let mut bench = Bench::new();
    bench.assemble(|a| {
        a.vmovdqu(ymmword_ptr(rsp - 64), ymm0).unwrap();
        a.mov(rax, qword_ptr(rsp - 48)).unwrap();
        a.mov(rbx, qword_ptr(rax)).unwrap();
        a.syscall().unwrap();
    });
    assert_eq!(bench.run().0.stop, StopReason::UnknownAddress);
    bench.assemble(|a| {
        a.vmovdqu(ymmword_ptr(rsp - 64), ymm0).unwrap();
        a.mov(qword_ptr(rsp - 48), rdi).unwrap();
        a.mov(rax, qword_ptr(rsp - 48)).unwrap();
        a.mov(rbx, qword_ptr(rax)).unwrap();
        a.syscall().unwrap();
    });
    bench.now_ns += 2_000_000_000;
    assert_eq!(bench.run().0.stop, StopReason::Syscall);
}

#[test]
fn popping_an_unknown_value_keeps_the_stack_pointer_known() {
    let mut bench = Bench::new();
    bench.assemble(|a| {
        a.vmovdqu(ymmword_ptr(rsp), ymm0).unwrap();
        a.pop(rax).unwrap();
        a.push(rdi).unwrap();
        a.syscall().unwrap();
    });
    assert_eq!(bench.run().0.stop, StopReason::Syscall);
}

#[test]
fn writes_stay_private_and_do_not_reach_the_next_sample() {
    let mut bench = Bench::new();
    bench.data.write(0, &1_u64.to_le_bytes());
    bench.assemble(|a| {
        a.mov(rax, qword_ptr(rdi)).unwrap();
        a.mov(qword_ptr(rdi), 77).unwrap();
        a.shl(rax, 12).unwrap();
        a.mov(rcx, qword_ptr(rdi + rax)).unwrap();
        a.syscall().unwrap();
    });
    for _ in 0..3 {
        let (_, touches) = bench.run();
        assert_eq!(touches[2], load(bench.data.address() + 4096, 8));
    }
    assert_eq!(bench.data.word(0), 1);
}

#[test]
fn each_run_sees_data_as_it_is_then() {
    let mut bench = Bench::new();
    bench.assemble(|a| {
        a.mov(rax, qword_ptr(rdi)).unwrap();
        a.mov(rcx, qword_ptr(rdi + rax)).unwrap();
        a.syscall().unwrap();
    });
    let data = bench.data.address();
    for at in [4096_u64, 8192] {
        bench.data.write(0, &at.to_le_bytes());
        assert_eq!(bench.run().1[1], load(data + at, 8));
    }
}

/// Of a million words that are summed up none is copied; of words that say where to go on each is.
#[test]
fn only_what_decides_an_address_or_a_branch_is_copied() {
    let mut bench = Bench::new();
    let mut run = |write: &dyn Fn(&mut CodeAssembler)| {
        bench.assemble(write);
        bench.now_ns += 2_000_000_000;
        bench.run();
        let before = bench.emulator.copies();
        let (run, touches) = bench.run();
        (run.stop, touches.len(), bench.emulator.copies() - before)
    };
    let sums = run(&|a| {
        let mut top = a.create_label();
        a.set_label(&mut top).unwrap();
        a.add(rax, qword_ptr(rdi)).unwrap();
        a.addsd(xmm0, qword_ptr(rdi + 8)).unwrap();
        a.add(rdi, 4096).unwrap();
        a.jmp(top).unwrap();
    });
    assert_eq!(sums, (StopReason::Limit, 128, 0));
    let follows = run(&|a| {
        let mut top = a.create_label();
        a.set_label(&mut top).unwrap();
        a.mov(rax, qword_ptr(rdi)).unwrap();
        a.lea(rdi, qword_ptr(rdi + rax + 4096)).unwrap();
        a.jmp(top).unwrap();
    });
    let most = CopyLimits::default().pieces_per_run;
    assert_eq!(follows, (StopReason::Copies, most + 1, most as u64), "and no more than a run may");
}

#[test]
fn a_value_that_was_put_off_is_had_through_registers_flags_and_stores() {
    let mut bench = Bench::new();
    let data = bench.data.address();
    bench.data.write(0, &64_u64.to_le_bytes());
    bench.data.write(8, &1.5_f64.to_le_bytes());
    bench.assemble(|a| {
        let mut out = a.create_label();
        a.mov(rax, qword_ptr(rdi)).unwrap();
        a.shl(rax, 1).unwrap();
        a.mov(qword_ptr(rsp - 16), rax).unwrap();
        a.movzx(ecx, word_ptr(rsp - 16)).unwrap();
        a.movsd_2(xmm0, qword_ptr(rdi + 8)).unwrap();
        a.addsd(xmm0, xmm0).unwrap();
        a.cvttsd2si(rdx, xmm0).unwrap();
        a.comisd(xmm0, qword_ptr(rdi + 8)).unwrap();
        a.jbe(out).unwrap();
        a.mov(rbx, qword_ptr(rdi + rcx + 1)).unwrap();
        a.mov(rbx, qword_ptr(rdi + rdx * 8)).unwrap();
        a.set_label(&mut out).unwrap();
        a.syscall().unwrap();
    });
    for _ in 0..2 {
        let (run, touches) = bench.run();
        assert_eq!((run.stop, run.instructions), (StopReason::Syscall, 11));
        assert_eq!(touches[touches.len() - 2..], [load(data + 129, 8), load(data + 24, 8)]);
    }
}

#[test]
fn string_instructions_touch_element_by_element() {
    let mut bench = Bench::new();
    let (data, stack) = (bench.data.address(), bench.stack.address() + 32768);
    bench.data.write(0, b"abcdefgh\0");
    bench.assemble(|a| {
        a.mov(rsi, rdi).unwrap();
        a.mov(rdi, rsp).unwrap();
        a.mov(ecx, 2).unwrap();
        a.rep().movsd().unwrap();
        a.xor(eax, eax).unwrap();
        a.mov(rdi, rsp).unwrap();
        a.mov(rcx, -1i64).unwrap();
        a.repne().scasb().unwrap();
        a.mov(rax, qword_ptr(rdi)).unwrap();
        a.syscall().unwrap();
    });
    let (run, touches) = bench.run();
    assert_eq!(run.stop, StopReason::Syscall);
    let copied = [load(data, 4), store(stack, 4), load(data + 4, 4), store(stack + 4, 4)];
    assert_eq!(touches[..4], copied);
    // The copy has no zero within it; what lies behind it on the stack is zero.
    assert_eq!(touches[4..], [(0..9).map(|at| load(stack + at, 1)).collect(), vec![load(stack + 9, 8)]].concat());
}

#[test]
fn changed_code_is_seen_after_its_time_to_live() {
    let mut bench = Bench::new();
    let data = bench.data.address();
    bench.assemble(|a| {
        a.mov(rax, qword_ptr(rdi + 8)).unwrap();
        a.syscall().unwrap();
    });
    assert_eq!(bench.run().1, [load(data + 8, 8)]);
    bench.assemble(|a| {
        a.mov(rax, qword_ptr(rdi + 16)).unwrap();
        a.syscall().unwrap();
    });
    assert_eq!(bench.run().1, [load(data + 8, 8)], "kept");
    bench.now_ns += 2_000_000_000;
    assert_eq!(bench.run().1, [load(data + 16, 8)], "compared and replaced");
}

#[test]
fn thread_local_access_needs_its_base() {
    let mut bench = Bench::new();
    bench.assemble(|a| {
        a.mov(rax, qword_ptr(0x28).fs()).unwrap();
        a.mov(rcx, qword_ptr(rdi)).unwrap();
        a.cmp(rax, rcx).unwrap();
        let mut out = a.create_label();
        a.je(out).unwrap();
        a.set_label(&mut out).unwrap();
        a.syscall().unwrap();
    });
    let data = bench.data.address();
    let (run, touches) = bench.run();
    assert_eq!(run.stop, StopReason::UnknownBranch);
    assert_eq!(touches, [load(data, 8)]);
    let base = data + 4096;
    bench.fs_base = Some(base);
    let (run, touches) = bench.run();
    assert_eq!(run.stop, StopReason::UnknownBranch, "no descriptor there");
    assert_eq!(touches, [load(data, 8)]);
    assert!(bench.emulator.thread_local_was_wrong());
    for at in [0, 16] {
        bench.data.write(4096 + at, &base.to_ne_bytes());
    }
    let (run, touches) = bench.run();
    assert_eq!((run.stop, run.stepped_over), (StopReason::Syscall, 0));
    assert!(!bench.emulator.thread_local_was_wrong());
    assert_eq!(touches, [load(data + 4096 + 0x28, 8), load(data, 8)]);
}

#[test]
fn unreadable_page_ends_the_run() {
    let mut bench = Bench::new();
    bench.assemble(|a| {
        a.mov(rax, qword_ptr(rdi)).unwrap();
        a.mov(rax, 0x10u64).unwrap();
        a.mov(rcx, qword_ptr(rax)).unwrap();
        a.jmp(rcx).unwrap();
    });
    let (run, touches) = bench.run();
    assert_eq!(run.stop, StopReason::UnreadableData);
    assert_eq!(touches.len(), 2);
    bench.code.write(0, &[0x0f, 0x05]);
    bench.now_ns += 2_000_000_000;
    assert_eq!(bench.run().0.stop, StopReason::Syscall, "the next run is as good as ever");
    let registers = Registers { general: [0; 16], ip: 0x10, flags: 0x202 };
    let run = bench.emulator.run(ProcessId(std::process::id()), &registers, None, bench.now_ns);
    assert_eq!(run.stop, StopReason::UnreadableCode);
}

#[test]
fn time_stamp_is_unknown() {
    let mut bench = Bench::new();
    bench.assemble(|a| {
        a.rdtsc().unwrap();
        a.mov(rcx, qword_ptr(rdi + rax)).unwrap();
    });
    let (run, touches) = bench.run();
    assert_eq!((run.stop, touches.len()), (StopReason::UnknownAddress, 0));
}

#[test]
#[ignore = "a measurement: run in release with --nocapture"]
fn cost_per_sample() {
    let mut bench = Bench::new();
    bench.assemble(|a| {
        let mut top = a.create_label();
        a.set_label(&mut top).unwrap();
        for _ in 0..3 {
            a.imul_3(rax, rax, 0x5851_f42d).unwrap();
            a.add(rax, 12345).unwrap();
        }
        a.mov(rcx, rax).unwrap();
        a.and(rcx, 0xffff8).unwrap();
        a.add(rbx, qword_ptr(rdi + rcx)).unwrap();
        a.jmp(top).unwrap();
    });
    bench.run();
    let start = std::time::Instant::now();
    let pages = bench.emulator.copies();
    let mut touches = 0;
    for _ in 0..2000 {
        let (run, touched) = bench.run();
        assert_eq!(run.stop, StopReason::Limit);
        touches += touched.len();
    }
    let pages = (bench.emulator.copies() - pages) / 2000;
    println!("{:?} a sample, {pages} copies, {} touches", start.elapsed() / 2000, touches / 2000);
}
