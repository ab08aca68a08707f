/* Hides AVX-512, VNNI, AMX and bfloat16 from a process: loaded by LD_PRELOAD, see __init__.py.

   The kernel is asked to let the instruction cpuid fail. The handler of that fault runs the instruction and clears the
   bits of the hidden instructions. Libraries then choose their kernels for AVX2, which run at native speed. Threads and
   forked processes inherit this; programs started anew load this file again. */
#define _GNU_SOURCE
#include <asm/prctl.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define BIT(number) (1u << (number))

typedef int (*set_action)(int, const struct sigaction *, struct sigaction *);

static struct sigaction others;

static set_action system_action(void) { return (set_action)dlsym(RTLD_NEXT, "sigaction"); }

static long allow_cpuid(int allowed) { return syscall(SYS_arch_prctl, ARCH_SET_CPUID, allowed); }

static void answer(greg_t *registers) {
    uint32_t leaf = registers[REG_RAX], part = registers[REG_RCX], a, b, c, d;
    allow_cpuid(1);
    __asm__ volatile("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(leaf), "c"(part));
    allow_cpuid(0);
    if (leaf == 7 && part == 0) {
        /* avx512: f dq ifma pf er cd bw vl, vbmi vbmi2 vnni bitalg vpopcntdq, 4vnniw 4fmaps vp2intersect; amx; fp16 */
        b &= ~(BIT(16) | BIT(17) | BIT(21) | BIT(26) | BIT(27) | BIT(28) | BIT(30) | BIT(31));
        c &= ~(BIT(1) | BIT(6) | BIT(11) | BIT(12) | BIT(14));
        d &= ~(BIT(2) | BIT(3) | BIT(8) | BIT(22) | BIT(23) | BIT(24) | BIT(25));
    } else if (leaf == 7 && part == 1) {
        /* avx_vnni avx512_bf16 amx_fp16 avx_ifma; avx_vnni_int8 avx_ne_convert amx_complex avx_vnni_int16 avx10 */
        a &= ~(BIT(4) | BIT(5) | BIT(21) | BIT(23));
        d &= ~(BIT(4) | BIT(5) | BIT(8) | BIT(10) | BIT(19));
    }
    registers[REG_RAX] = a;
    registers[REG_RBX] = b;
    registers[REG_RCX] = c;
    registers[REG_RDX] = d;
    registers[REG_RIP] += 2;
}

static void on_fault(int number, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    const uint8_t *code = (const uint8_t *)registers[REG_RIP];
    if (info->si_code == SI_KERNEL && code[0] == 0x0f && code[1] == 0xa2) {
        answer(registers);
    } else if (others.sa_flags & SA_SIGINFO) {
        others.sa_sigaction(number, info, context);
    } else if (others.sa_handler != SIG_DFL && others.sa_handler != SIG_IGN) {
        others.sa_handler(number);
    } else {
        /* The fault comes again, and ends the process. */
        system_action()(SIGSEGV, &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
    }
}

/* Python's faulthandler and others also handle SIGSEGV: theirs comes after ours. */
int sigaction(int number, const struct sigaction *wanted, struct sigaction *before) {
    if (number != SIGSEGV) return system_action()(number, wanted, before);
    if (before) *before = others;
    if (wanted) others = *wanted;
    return 0;
}

sighandler_t signal(int number, sighandler_t handler) {
    struct sigaction before, wanted = {.sa_handler = handler, .sa_flags = SA_RESTART};
    return sigaction(number, &wanted, &before) ? SIG_ERR : before.sa_handler;
}

__attribute__((constructor)) static void begin(void) {
    struct sigaction ours = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
    system_action()(SIGSEGV, &ours, NULL);
    if (allow_cpuid(0)) {
        perror("error: this processor or kernel cannot hide instructions");
        _exit(125);
    }
}
