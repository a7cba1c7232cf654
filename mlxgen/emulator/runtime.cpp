// Runs emulated kernels. The threads of a threadgroup are fibers of one system
// thread. Context switches happen only at barriers and simdgroup operations, in
// the order of the launch's schedule. To reveal mistakes:
//
//  - threadgroup memory is filled with NaN bytes before each threadgroup,
//  - during a launch, each buffer is copied between guard pages; the copies of
//    inputs are read-only,
//  - lanes that wait in different places are an error,
//  - unordered accesses to the same memory are an error (races.h),
//  - a launch that exceeds its time limit is stopped.
//
// The runtime is a shared library, which every library of kernels needs.

#include "mlxgen_metal/runtime.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "mlxgen_metal/races.h"

#ifndef MAP_NORESERVE
#define MAP_NORESERVE 0
#endif

// ------------------------------------------------------------ context switch

// mlxgen_metal_switch(void** from, void* to) saves the registers that a call
// preserves on the stack and switches to another stack.
extern "C" void mlxgen_metal_switch(void** from, void* to) asm(
    "mlxgen_metal_switch");

#if defined(__x86_64__)
asm(R"(
.text
.globl mlxgen_metal_switch
mlxgen_metal_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
constexpr size_t saved_words = 6;
#elif defined(__aarch64__)
asm(R"(
.text
.globl mlxgen_metal_switch
.p2align 2
mlxgen_metal_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
)");
#else
#error "the Metal emulation needs x86-64 or arm64"
#endif

namespace mlxgen_metal {

const int change = [] {
  auto given = getenv("MLXGEN_METAL_CHANGE");
  return given ? atoi(given) : 0;
}();

namespace {

enum class State : uint8_t { fresh, ready, at_simd, at_barrier, done };

constexpr size_t stack_size = 256 * 1024;
constexpr size_t guard_size = size_t(1) << 30;
constexpr int slot_size = 64;
// The bytes around an output: not NaN, which reads beyond inputs return.
constexpr uint8_t beside_output = 0xA5;

struct Fiber {
  void* stack_pointer;
  char* stack;
  State state;
  uint32_t index; // in the threadgroup
  Call call; // at which it waits
  const char* what;
};

struct Simdgroup {
  using Slots = uint8_t[simdgroup_size][slot_size];
  alignas(16) Slots given; // by the waiting lanes
  alignas(16) Slots slots; // of the last operation
  uint32_t active;
};

/** A buffer's copy between guards. */
struct Region {
  uint8_t* open; // the accessible pages
  size_t opened;
  uint8_t* copy; // of the original's `start`
  uint8_t* start;
  size_t size;
  size_t phase; // the copy's address modulo 16, as on a GPU
  bool output;
  bool fill;
  bool whole;
  size_t item; // the size of an element, 1 if unknown
  races::Watched* watched;
  std::string name;
};

struct Shared {
  void* memory;
  size_t size;
  const char* name;
};

std::mutex launch_mutex;
pthread_t launching_thread;
void* main_stack_pointer;
Fiber* running;
// True while a kernel's own code runs, which a signal may interrupt.
volatile bool in_kernel;
volatile bool out_of_time;
Thread* running_thread;
std::vector<Fiber> fibers;
std::vector<Simdgroup> simdgroups;
std::vector<char*> free_stacks;
std::vector<Region> regions;
// The reservation with all regions, each in a slot of 1 << slot_shift bytes.
uint8_t* reserved;
size_t reserved_size;
int slot_shift;
std::unordered_map<const void*, Shared> shared_memory;
// The addresses that atomic operations of this launch have filled with 0xFF,
// as unwritten memory.
std::unordered_set<const void*> stored;
alignas(64) char arena[max_threadgroup_memory];
size_t arena_used;
size_t bound_memory; // threadgroup memory whose size the launch has set
// The error of this launch, where it happened in the kernel's code, and in
// which thread, unless the message names threads.
std::string error;
const void* error_pc;
std::string error_thread;
const Entry* entry;
uint32_t group_position[3];
uint32_t group_threads[3];
uint64_t random_state;

uint64_t random_number() {
  random_state += 0x9E3779B97F4A7C15u;
  uint64_t z = random_state;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

template <typename... Ts>
std::string format(const char* text, Ts... values) {
  char buffer[1024];
  snprintf(buffer, sizeof(buffer), text, values...);
  return buffer;
}

std::string describe(const uint32_t* p) {
  return format("(%u, %u, %u)", p[0], p[1], p[2]);
}

/** Describe a thread of the running threadgroup for messages. */
std::string position(uint32_t index) {
  uint32_t x = index % group_threads[0];
  uint32_t y = index / group_threads[0] % group_threads[1];
  uint32_t z = index / group_threads[0] / group_threads[1];
  uint32_t p[3] = {x, y, z};
  return describe(p);
}

std::string describe(const Fiber& fiber) {
  return "thread " + position(fiber.index) + " of threadgroup " +
      describe(group_position);
}

/** Leave the fiber; it resumes here. */
void to_main() {
  in_kernel = false;
  mlxgen_metal_switch(&running->stack_pointer, main_stack_pointer);
  in_kernel = true;
}

/** Abort the launch; called on a fiber, it does not return. */
[[noreturn]] void stop(const std::string& message, const void* pc) {
  in_kernel = false;
  error = message;
  error_pc = pc;
  to_main();
  __builtin_unreachable();
}

[[noreturn]] void fail(const std::string& what, const void* pc) {
  in_kernel = false;
  error_thread = describe(*running);
  stop(what, pc);
}

extern "C" void mlxgen_metal_fiber_main() {
  in_kernel = true;
  entry->run(*running_thread);
  in_kernel = false;
  running->state = State::done;
  to_main();
  __builtin_unreachable();
}

/** 4 KiB, or 16 KiB on Apple silicon. */
size_t page_size() {
  static const auto size = size_t(sysconf(_SC_PAGESIZE));
  return size;
}

char* take_stack() {
  if (!free_stacks.empty()) {
    auto stack = free_stacks.back();
    free_stacks.pop_back();
    return stack;
  }
  auto memory = mmap(
      nullptr,
      stack_size,
      PROT_READ | PROT_WRITE,
      MAP_PRIVATE | MAP_ANON | MAP_NORESERVE,
      -1,
      0);
  if (memory == MAP_FAILED) {
    return nullptr;
  }
  mprotect(memory, page_size(), PROT_NONE);
  return static_cast<char*>(memory);
}

bool prepare(Fiber& fiber) {
  fiber.stack = take_stack();
  if (fiber.stack == nullptr) {
    error = "cannot allocate the threads' stacks";
    return false;
  }
  auto top = reinterpret_cast<void**>(fiber.stack + stack_size);
#if defined(__x86_64__)
  top -= 1; // the stack is aligned as after a call; this slot is the return
            // address
  *top = nullptr;
  *--top = reinterpret_cast<void*>(&mlxgen_metal_fiber_main);
  top -= saved_words;
  memset(top, 0, saved_words * sizeof(void*));
#else
  top -= 20;
  memset(top, 0, 160);
  top[11] = reinterpret_cast<void*>(&mlxgen_metal_fiber_main);
#endif
  fiber.stack_pointer = top;
  return true;
}

void set_positions(Thread& thread, uint32_t index, const uint64_t* offsets) {
  races::thread = index;
  uint32_t p[3] = {index, 0, 0};
  if (group_threads[1] * group_threads[2] != 1) {
    p[0] = index % group_threads[0];
    p[1] = index / group_threads[0] % group_threads[1];
    p[2] = index / group_threads[0] / group_threads[1];
  }
  for (int i = 0; i < 3; ++i) {
    thread.position[thread_position_in_threadgroup][i] = p[i];
    thread.position[thread_position_in_grid][i] = uint32_t(offsets[i]) + p[i];
  }
  thread.position[thread_index_in_threadgroup][0] = index;
  thread.position[thread_index_in_simdgroup][0] = index % simdgroup_size;
  thread.position[simdgroup_index_in_threadgroup][0] = index / simdgroup_size;
  thread.position[thread_index_in_quadgroup][0] = index % 4;
  thread.position[quadgroup_index_in_threadgroup][0] = index / 4;
}

// ------------------------------------------------------------------ time limit

constexpr int time_signal = SIGVTALRM;
double time_limit; // of this launch, in seconds

/** The instruction that a signal has interrupted. */
const void* pc_of(void* context) {
  auto& machine = static_cast<ucontext_t*>(context)->uc_mcontext;
#if defined(__APPLE__) && defined(__x86_64__)
  auto pc = machine->__ss.__rip;
#elif defined(__APPLE__)
  auto pc = machine->__ss.__pc;
#elif defined(__x86_64__)
  auto pc = machine.gregs[REG_RIP];
#else
  auto pc = machine.pc;
#endif
  return reinterpret_cast<const void*>(pc + 1); // as if it were a call
}

/** Sent to the launching thread after the time limit, repeatedly. */
void on_time(int, siginfo_t*, void* context) {
  if (!pthread_equal(pthread_self(), launching_thread)) {
    return;
  }
  out_of_time = true;
  if (in_kernel) {
    error_pc = pc_of(context);
    to_main();
  }
}

/** A thread that sends the signal. */
class Watch {
 public:
  void start() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!started_) {
      // Permanent, because a signal may arrive after the launch.
      struct sigaction action{};
      action.sa_sigaction = on_time;
      action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART;
      sigaction(time_signal, &action, nullptr);
      std::thread([this] { run(); }).detach();
      started_ = true;
    }
    launching_thread = pthread_self();
    out_of_time = false;
    deadline_ = std::chrono::steady_clock::now() +
        std::chrono::microseconds(int64_t(time_limit * 1e6));
    armed_ = true;
    changed_.notify_one();
  }
  void stop() {
    std::lock_guard<std::mutex> lock(mutex_);
    armed_ = false;
  }

 private:
  void run() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      if (!armed_) {
        changed_.wait(lock);
      } else if (std::chrono::steady_clock::now() < deadline_) {
        changed_.wait_until(lock, deadline_);
      } else {
        pthread_kill(launching_thread, time_signal);
        changed_.wait_for(lock, std::chrono::milliseconds(50));
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::chrono::steady_clock::time_point deadline_;
  bool armed_ = false;
  bool started_ = false;
};

/** Never destroyed, because its thread also runs while the process exits. */
Watch& watch() {
  static auto* value = new Watch;
  return *value;
}

double limit_of(const Launch& launch) {
  auto given = getenv("MLXGEN_METAL_TIMEOUT");
  double seconds = given ? atof(given) : 0;
  return launch.seconds > 0 ? launch.seconds : seconds > 0 ? seconds : 60;
}

// ----------------------------------------------------------------------- races

/** The name of the memory of a race. */
std::string named(const uint8_t* address) {
  for (const auto& region : regions) {
    if (address >= region.copy && address < region.copy + region.size) {
      return format(
          "byte %td of %s", address - region.copy, region.name.c_str());
    }
  }
  for (const auto& [key, variable] : shared_memory) {
    auto start = static_cast<uint8_t*>(variable.memory);
    if (address >= start && address < start + variable.size) {
      return format("byte %td of %s", address - start, variable.name);
    }
  }
  return "threadgroup memory";
}

std::string described(const uint8_t* at, races::Race race, races::Stamp other) {
  auto end = " access " + named(at) + ", one of them writes, and ";
  if (race == races::among_threadgroups) {
    return "race: " + describe(*running) + " and another threadgroup" + end +
        "not atomically";
  }
  auto first = running->index;
  auto second = uint32_t(other & 1023);
  return "race: threads " + position(std::min(first, second)) + " and " +
      position(std::max(first, second)) + " of threadgroup " +
      describe(group_position) + end + "no barrier is between";
}

std::string described_write() {
  const auto& p = races::pending;
  return described(p.at, p.race, p.other);
}

// ------------------------------------------------------------------ schedules

struct Group {
  Thread thread; // positions that are equal for all threads are set once
  uint64_t offsets[3];
  uint32_t count;
  uint32_t live;
};

/** Run one thread until it waits or ends; false after an error. */
bool resume(Group& group, uint32_t index) {
  auto& fiber = fibers[index];
  if (fiber.state == State::fresh && !prepare(fiber)) {
    return false;
  }
  set_positions(group.thread, index, group.offsets);
  running_thread = &group.thread; // the kernel reads it before its first wait
  running = &fiber;
  fiber.state = State::ready;
  mlxgen_metal_switch(&main_stack_pointer, fiber.stack_pointer);
  if (out_of_time && error.empty()) {
    error = format(
        "no end within %g seconds (MLXGEN_METAL_TIMEOUT sets the limit)",
        time_limit);
    error_thread = describe(fiber);
  }
  if (error.empty() && races::settle()) {
    error = described_write();
    error_pc = races::pending.pc;
  }
  running = nullptr;
  if (!error.empty()) {
    return false;
  }
  if (fiber.state == State::done) {
    free_stacks.push_back(fiber.stack);
    fiber.stack = nullptr;
    --group.live;
  }
  return true;
}

bool runnable(const Fiber& fiber) {
  return fiber.state == State::fresh || fiber.state == State::ready;
}

std::string at(const Fiber& fiber) {
  return format(
      "%s at %s:%d",
      fiber.what,
      fiber.call.file_name(),
      int(fiber.call.line()));
}

bool same_function(const Fiber& a, const Fiber& b) {
  return strcmp(a.call.function_name(), b.call.function_name()) == 0 &&
      strcmp(a.call.file_name(), b.call.file_name()) == 0;
}

bool before(const Fiber& a, const Fiber& b) {
  return std::pair(a.call.line(), a.call.column()) <
      std::pair(b.call.line(), b.call.column());
}

bool same_place(const Fiber& a, const Fiber& b) {
  return same_function(a, b) && !before(a, b) && !before(b, a) &&
      strcmp(a.what, b.what) == 0;
}

/**
 * Resume the lanes of a simdgroup that wait at an operation, if no other lane
 * can run. Only they are active: not lanes that wait at a barrier, and not
 * those of another branch, whose operation comes later. In one function, lanes
 * meet again if the first operation of the source goes first.
 */
bool release_simdgroup(Group& group, uint32_t simdgroup, bool& released) {
  uint32_t first = simdgroup * simdgroup_size;
  uint32_t stop = std::min(first + simdgroup_size, group.count);
  Fiber* next = nullptr;
  released = false;
  for (uint32_t i = first; i < stop; ++i) {
    auto& fiber = fibers[i];
    if (runnable(fiber)) {
      return true;
    }
    if (fiber.state != State::at_simd) {
      continue;
    }
    if (next != nullptr && !same_function(fiber, *next)) {
      error = "divergence: " + describe(*next) + " waits for " + at(*next) +
          ", but " + describe(fiber) + " of the same simdgroup waits for " +
          at(fiber);
      return false;
    }
    if (next == nullptr || before(fiber, *next)) {
      next = &fiber;
    }
  }
  if (next == nullptr) {
    return true;
  }
  auto& values = simdgroups[simdgroup];
  values.active = 0;
  for (uint32_t i = first; i < stop; ++i) {
    if (fibers[i].state == State::at_simd && same_place(fibers[i], *next)) {
      uint32_t lane = i - first;
      values.active |= 1u << lane;
      memcpy(values.slots[lane], values.given[lane], slot_size);
      fibers[i].state = State::ready;
    }
  }
  released = true;
  return true;
}

/** Run the lanes of a simdgroup once; set `moved` if at least one could run. */
bool advance(Group& group, uint32_t simdgroup, int schedule, bool& moved) {
  uint32_t first = simdgroup * simdgroup_size;
  uint32_t count = std::min(simdgroup_size, group.count - first);
  uint32_t order[simdgroup_size];
  for (uint32_t i = 0; i < count; ++i) {
    order[i] = schedule == descending ? count - 1 - i : i;
  }
  if (schedule == seeded) {
    for (uint32_t i = count; i > 1; --i) {
      std::swap(order[i - 1], order[random_number() % i]);
    }
  }
  moved = false;
  for (uint32_t i = 0; i < count; ++i) {
    if (runnable(fibers[first + order[i]])) {
      moved = true;
      if (!resume(group, first + order[i])) {
        return false;
      }
    }
  }
  bool released;
  if (!release_simdgroup(group, simdgroup, released)) {
    return false;
  }
  moved = moved || released;
  return true;
}

/** Resume the threadgroup; all live threads must wait at the same barrier. */
bool release_barrier(Group& group) {
  Fiber* waiting = nullptr;
  for (uint32_t i = 0; i < group.count; ++i) {
    auto& fiber = fibers[i];
    if (fiber.state == State::done) {
      continue;
    }
    if (waiting == nullptr) {
      waiting = &fiber;
    }
    if (!same_place(fiber, *waiting)) {
      error = "divergence: " + describe(*waiting) + " waits for " +
          at(*waiting) + ", but " + describe(fiber) + " for " + at(fiber);
      return false;
    }
  }
  if (waiting != nullptr && group.live < group.count) {
    error = "divergence: " + describe(*waiting) + " waits for " + at(*waiting) +
        format(", which %u threads never reach", group.count - group.live);
    return false;
  }
  races::next_stretch();
  for (uint32_t i = 0; i < group.count; ++i) {
    if (fibers[i].state == State::at_barrier) {
      fibers[i].state = State::ready;
    }
  }
  return true;
}

bool run_group(Group& group, int schedule) {
  uint32_t count = (group.count + simdgroup_size - 1) / simdgroup_size;
  group.live = group.count;
  for (uint32_t i = 0; i < group.count; ++i) {
    fibers[i] = Fiber{nullptr, nullptr, State::fresh, i, {}, ""};
  }
  races::next_threadgroup();
  memset(arena, 0xFF, arena_used);
  arena_used = 0;
  shared_memory.clear();
  std::vector<uint32_t> order(count);
  while (group.live > 0) {
    for (uint32_t i = 0; i < count; ++i) {
      order[i] = schedule == descending ? count - 1 - i : i;
    }
    if (schedule == natural || schedule == seeded) {
      // Simdgroups take turns until none can continue.
      uint32_t open = count;
      while (open > 0) {
        for (uint32_t i = 0; i < open;) {
          uint32_t pick = schedule == seeded ? random_number() % open : i;
          bool moved;
          if (!advance(group, order[pick], schedule, moved)) {
            return false;
          }
          if (moved) {
            ++i;
          } else if (schedule == seeded) {
            order[pick] = order[--open];
          } else {
            order.erase(order.begin() + pick);
            order.push_back(0);
            --open;
          }
        }
      }
      for (uint32_t i = 0; i < count; ++i) {
        order[i] = i;
      }
    } else {
      for (auto simdgroup : order) {
        bool moved = true;
        while (moved) {
          if (!advance(group, simdgroup, schedule, moved)) {
            return false;
          }
        }
      }
    }
    if (!release_barrier(group)) {
      return false;
    }
  }
  return true;
}

// -------------------------------------------------------------------- buffers

size_t round_up(size_t n, size_t to) {
  return (n + to - 1) / to * to;
}

/** Reserve a slot with guards for each region. */
bool reserve_slots() {
  size_t most = 1;
  for (auto& region : regions) {
    region.opened =
        round_up(std::max<size_t>(region.size, 1) + 15, page_size());
    most = std::max(most, region.opened);
  }
  slot_shift = 64 - __builtin_clzll(most + 2 * guard_size - 1);
  reserved_size = std::max<size_t>(regions.size(), 1) << slot_shift;
  auto base = mmap(
      nullptr,
      reserved_size,
      PROT_NONE,
      MAP_PRIVATE | MAP_ANON | MAP_NORESERVE,
      -1,
      0);
  if (base == MAP_FAILED) {
    reserved_size = 0;
    error = "cannot reserve address space for the guard pages of buffers";
    return false;
  }
  reserved = static_cast<uint8_t*>(base);
  return true;
}

void open_region(Region& region, bool align_start) {
  auto slot = size_t(&region - regions.data());
  region.open = reserved + (slot << slot_shift) + guard_size;
  mprotect(region.open, region.opened, PROT_READ | PROT_WRITE);
  memset(region.open, region.output ? beside_output : 0xFF, region.opened);
  size_t last = (region.opened - region.size - region.phase) / 16 * 16;
  region.copy = region.open + region.phase + (align_start ? 0 : last);
  if (region.fill) {
    memset(region.copy, 0xFF, region.size);
  } else if (region.size > 0) {
    memcpy(region.copy, region.start, region.size);
  }
  if (!region.output) {
    mprotect(region.open, region.opened, PROT_READ);
  }
  if (region.size == 0) {
    mprotect(region.open, region.opened, PROT_NONE);
  }
}

/** Report writes outside of a buffer, on the side without a guard page. */
void check_slack() {
  for (const auto& region : regions) {
    if (!region.output || region.size == 0) {
      continue; // read-only or inaccessible
    }
    auto end = region.copy + region.size;
    for (auto p = region.open; p < region.open + region.opened; ++p) {
      if (p == region.copy) {
        p = end;
      }
      if (p < region.open + region.opened && *p != beside_output &&
          error.empty()) {
        error = "access outside of " + region.name +
            format(" at byte %td of %zu", p - region.copy, region.size);
      }
    }
  }
}

/** Report elements of outputs that no thread has written. */
void check_written() {
  for (const auto& region : regions) {
    if (!region.whole) {
      continue;
    }
    size_t missing = 0;
    size_t first = 0;
    for (size_t i = 0; i + region.item <= region.size; i += region.item) {
      auto p = region.copy + i;
      bool filled =
          std::all_of(p, p + region.item, [](uint8_t b) { return b == 0xFF; });
      if (filled && stored.count(p) == 0 &&
          !races::was_written(*region.watched, i)) {
        first = missing++ == 0 ? i / region.item : first;
      }
    }
    if (missing > 0 && error.empty()) {
      error = format(
          "no thread writes %zu of the %zu elements of %s, first element %zu",
          missing,
          region.size / region.item,
          region.name.c_str(),
          first);
    }
  }
}

void close_regions(bool keep) {
  for (auto& region : regions) {
    if (keep && region.output && region.size > 0) {
      memcpy(region.start, region.copy, region.size);
    }
  }
  if (reserved_size > 0) {
    munmap(reserved, reserved_size);
    reserved_size = 0;
  }
  regions.clear();
}

constexpr int fault_signals[] = {SIGSEGV, SIGBUS, SIGFPE};
struct sigaction old_actions[3];

/** The region whose slot contains an address; null for other memory. */
Region* region_of(const void* address) {
  auto at = size_t(static_cast<const uint8_t*>(address) - reserved);
  return at < reserved_size ? &regions[at >> slot_shift] : nullptr;
}

std::string outside(const Region& region, const void* address) {
  if (region.size == 0) {
    return "access to " + region.name + ", which is empty";
  }
  auto at = static_cast<const uint8_t*>(address) - region.copy;
  return format(
      "access outside of %s at byte %td of %zu",
      region.name.c_str(),
      at,
      region.size);
}

/** Describe a kernel's fault in terms of its buffers. */
void on_fault(int signal, siginfo_t* info, void* context) {
  if (!in_kernel || !pthread_equal(pthread_self(), launching_thread)) {
    // Not the kernel's fault: the previous signal handler reports it.
    const char* parts[] = {
        "[metal emulation] fault outside of a kernel, while ",
        entry->name,
        " was launched\n"};
    for (auto part : parts) {
      [[maybe_unused]] auto n = write(STDERR_FILENO, part, strlen(part));
    }
    for (int i = 0; i < 3; ++i) {
      sigaction(fault_signals[i], &old_actions[i], nullptr);
    }
    return;
  }
  in_kernel = false;
  auto address = static_cast<uint8_t*>(info->si_addr);
  std::string what = signal == SIGFPE
      ? std::string("integer division by zero")
      : "access to memory that belongs to no buffer";
#ifdef SI_KERNEL // the processor gives no address
  if (signal == SIGSEGV && info->si_code == SI_KERNEL) {
    what =
        "access at an invalid or misaligned address: that of a float4 must "
        "be a multiple of 16";
  }
#endif
  if (auto region = signal == SIGFPE ? nullptr : region_of(address)) {
    size_t offset = size_t(address - region->copy);
    what = offset < region->size
        ? format(
              "write to read-only %s at byte %zu", region->name.c_str(), offset)
        : outside(*region, address);
  }
  if (signal != SIGFPE &&
      address >= reinterpret_cast<uint8_t*>(running->stack) &&
      address < reinterpret_cast<uint8_t*>(running->stack) + page_size()) {
    what = format(
        "stack overflow of a thread, which has %zu KiB", stack_size / 1024);
  }
  fail(what, pc_of(context));
}

std::string named(int index) {
  auto parameters = entry->parameters();
  for (int i = 0; i < entry->count; ++i) {
    if (parameters[i].kind == buffer && parameters[i].index == index) {
      return format("buffer %d (%s)", index, parameters[i].name);
    }
  }
  return format("buffer %d", index);
}

const char* const code_names[] = {
    "other",
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "complex64"};

/** Compare the bindings with the kernel's parameters. */
void check_arguments(const Launch& launch) {
  auto parameters = entry->parameters();
  bool known[max_buffers] = {};
  for (int i = 0; i < entry->count; ++i) {
    const auto& p = parameters[i];
    if (p.kind == threadgroup_memory) {
      if (launch.shared_sizes[p.index] == 0) {
        error = format("no size of threadgroup memory %d is set", p.index);
      }
      continue;
    }
    if (p.kind != buffer) {
      continue;
    }
    const auto& argument = launch.arguments[p.index];
    known[p.index] = true;
    auto name = named(p.index);
    if (!argument.bound) {
      if (!p.optional) {
        error = name + " is not bound";
      }
      continue;
    }
    if (argument.bytes && p.size > 0) {
      if (p.reference ? argument.size != size_t(p.size)
                      : argument.size == 0 || argument.size % p.size != 0) {
        error = format(
            "%llu bytes are set for %s, which is a %s",
            static_cast<unsigned long long>(argument.size),
            name.c_str(),
            p.type);
      }
    }
    if (error.empty() && argument.code != other && p.code != other &&
        argument.code != p.code) {
      error = format(
          "%s is bound to %s, but the kernel takes %s",
          name.c_str(),
          code_names[argument.code],
          p.type);
    }
    if (!p.constant && !argument.output) {
      error = name + " is written by the kernel, but bound as an input";
    }
    if (p.constant && argument.output) {
      error = name + " is only read by the kernel, but bound as an output";
    }
  }
  for (int i = 0; i < max_buffers; ++i) {
    if (launch.arguments[i].bound && !known[i]) {
      error = format("buffer %d is bound, but the kernel has none", i);
    }
  }
}

size_t size_of(int32_t code) {
  return code >= complex64 || code == int64 || code == uint64 ? 8
      : code == int32 || code == uint32 || code == float32    ? 4
      : code >= int16                                         ? 2
                                                              : 1;
}

/** Copy all buffers; overlapping buffers share one copy. */
bool open_regions(const Launch& launch, void** pointers) {
  struct Span {
    uint8_t* start;
    uint8_t* stop;
  };
  std::vector<int> bound;
  for (int i = 0; i < max_buffers; ++i) {
    if (launch.arguments[i].bound) {
      bound.push_back(i);
    }
  }
  std::stable_sort(bound.begin(), bound.end(), [&](int a, int b) {
    return launch.arguments[a].start < launch.arguments[b].start;
  });
  std::vector<int> place(max_buffers, -1);
  for (int i : bound) {
    const auto& a = launch.arguments[i];
    auto last = regions.empty() ? nullptr : &regions.back();
    bool overlaps = last != nullptr && a.size > 0 && last->size > 0 &&
        a.start < last->start + last->size;
    if (overlaps) {
      last->size =
          std::max(last->start + last->size, a.start + a.size) - last->start;
      last->output = last->output || a.output;
      last->fill = last->fill && a.fill;
      last->whole = last->whole && a.whole;
      last->item = std::min(last->item, size_of(a.code));
      last->name += " and " + named(i);
    } else {
      Region region{};
      region.start = a.start;
      region.size = a.size;
      region.phase = a.offset % 16;
      region.output = a.output != 0;
      region.fill = a.fill != 0;
      region.whole = a.whole != 0;
      region.item = size_of(a.code);
      region.name = named(i);
      regions.push_back(region);
    }
    place[i] = int(regions.size()) - 1;
  }
  if (!reserve_slots()) {
    return false;
  }
  for (auto& region : regions) {
    open_region(region, launch.align_start != 0);
  }
  races::begin();
  races::watch(arena, sizeof(arena), 1, true);
  for (auto& region : regions) {
    if (region.output) {
      region.watched =
          races::watch(region.copy, region.size, region.item, false);
    }
  }
  for (int i : bound) {
    const auto& a = launch.arguments[i];
    const auto& region = regions[place[i]];
    pointers[i] = region.copy + (a.data - region.start);
  }
  return true;
}

bool run_grid(const Launch& launch, void* const* pointers) {
  uint64_t grid[3];
  uint64_t groups[3];
  uint64_t total = 1;
  for (int i = 0; i < 3; ++i) {
    total *= launch.group[i];
    if (launch.group[i] == 0 || launch.grid[i] == 0) {
      error = "the grid and the threadgroup must not be empty";
      return false;
    }
    grid[i] = launch.by_threadgroups ? launch.grid[i] * launch.group[i]
                                     : launch.grid[i];
    groups[i] = (grid[i] + launch.group[i] - 1) / launch.group[i];
    if (grid[i] > 0xFFFFFFFFu) {
      error = "a dimension of the grid exceeds 32 bits";
      return false;
    }
  }
  uint64_t most = entry->max_threads ? entry->max_threads : max_threads;
  if (total > most) {
    error = format(
        "a threadgroup of %llu threads exceeds the maximum of %llu",
        static_cast<unsigned long long>(total),
        static_cast<unsigned long long>(most));
    return false;
  }
  fibers.resize(max_threads);
  simdgroups.resize(max_threads / simdgroup_size);
  std::vector<std::vector<uint8_t>> storage(max_buffers);
  void* shared[max_buffers] = {};
  bound_memory = 0;
  for (int i = 0; i < max_buffers; ++i) {
    storage[i].resize(launch.shared_sizes[i]);
    shared[i] = storage[i].data();
    bound_memory += storage[i].size();
    races::watch(storage[i].data(), storage[i].size(), 1, true);
  }
  if (bound_memory > max_threadgroup_memory) {
    error = "more than 32 KiB of threadgroup memory";
    return false;
  }
  Group group{};
  group.thread.buffers = pointers;
  group.thread.shared = shared;
  auto& position = group.thread.position;
  uint64_t number = groups[0] * groups[1] * groups[2];
  for (uint64_t n = 0; n < number; ++n) {
    uint64_t k = launch.schedule == descending ? number - 1 - n : n;
    uint64_t p[3] = {
        k % groups[0], k / groups[0] % groups[1], k / groups[0] / groups[1]};
    group.count = 1;
    for (int i = 0; i < 3; ++i) {
      group_position[i] = uint32_t(p[i]);
      group.offsets[i] = p[i] * launch.group[i];
      // Threadgroups at the grid's edge are smaller.
      group_threads[i] =
          uint32_t(std::min(launch.group[i], grid[i] - group.offsets[i]));
      group.count *= group_threads[i];
      position[threadgroup_position_in_grid][i] = uint32_t(p[i]);
      position[threads_per_grid][i] = uint32_t(grid[i]);
      position[threadgroups_per_grid][i] = uint32_t(groups[i]);
      position[threads_per_threadgroup][i] = group_threads[i];
      position[dispatch_threads_per_threadgroup][i] = uint32_t(launch.group[i]);
    }
    position[simdgroups_per_threadgroup][0] =
        (group.count + simdgroup_size - 1) / simdgroup_size;
    position[threads_per_simdgroup][0] = simdgroup_size;
    position[quadgroups_per_threadgroup][0] = (group.count + 3) / 4;
    position[threads_per_quadgroup][0] = 4;
    for (auto& memory : storage) {
      std::fill(memory.begin(), memory.end(), uint8_t(0xFF));
    }
    if (!run_group(group, launch.schedule)) {
      return false;
    }
  }
  return true;
}

/** ", at file:line" of the kernel's source; "" if that is not known. */
std::string place_of([[maybe_unused]] const void* pc) {
#ifdef __linux__ // other systems keep the lines in files that are deleted
  Dl_info info;
  if (pc == nullptr || dladdr(pc, &info) == 0) {
    return "";
  }
  auto at = static_cast<const char*>(pc) - 1 -
      static_cast<const char*>(info.dli_fbase);
  auto command = format("addr2line -i -e '%s' 0x%tx", info.dli_fname, at);
  auto pipe = popen((command + " 2>/dev/null").c_str(), "r");
  if (pipe == nullptr) {
    return "";
  }
  // The innermost of inlined functions comes first. A line of the file is
  // better than one of MLX's headers.
  std::string found;
  bool own = false;
  char line[1024];
  while (fgets(line, sizeof(line), pipe) != nullptr) {
    std::string text(line, strcspn(line, " \n"));
    bool header = text.find("/mlx/backend/") != std::string::npos;
    if (text[0] == '?' || text.find("/mlxgen_metal/") != std::string::npos ||
        own || (header && !found.empty())) {
      continue;
    }
    own = !header;
    while (text.compare(0, 2, "./") == 0) {
      text.erase(0, 2); // relative, as in the `#line`
    }
    found = text;
  }
  pclose(pipe);
  return found.empty() ? "" : ", at " + found;
#else
  return "";
#endif
}

/** Runs the runtime's own code on a fiber, which no signal may interrupt. */
struct Inside {
  Inside() {
    in_kernel = false;
  }
  ~Inside() {
    in_kernel = true;
  }
};

} // namespace

// ------------------------------------------------------------- what kernels
// call

void* shared_storage(
    const void* key,
    size_t size,
    size_t alignment,
    const char* name) {
  Inside inside;
  auto found = shared_memory.find(key);
  if (found != shared_memory.end()) {
    return found->second.memory;
  }
  size_t start = round_up(arena_used, std::max<size_t>(alignment, 16));
  size_t needed = start + size + bound_memory;
  if (needed > max_threadgroup_memory) {
    auto what =
        "threadgroup memory for %s: %zu bytes exceed the limit of 32 KiB";
    auto excess = needed - max_threadgroup_memory;
    fail(format(what, name, excess), __builtin_return_address(0));
  }
  arena_used = start + size;
  shared_memory[key] = {arena + start, size, name};
  return arena + start;
}

void barrier(const char* what, bool whole, Call call) {
  auto fiber = running;
  fiber->what = what;
  fiber->call = call;
  fiber->state = whole ? State::at_barrier : State::at_simd;
  to_main();
}

Lanes exchange(const void* value, size_t size, const char* what, Call call) {
  auto fiber = running;
  auto& simdgroup = simdgroups[fiber->index / simdgroup_size];
  uint32_t lane = fiber->index % simdgroup_size;
  // The results of the last operation are elsewhere: other lanes may still
  // have to read them.
  memcpy(simdgroup.given[lane], value, size);
  barrier(what, false, call);
  return {simdgroup.slots[0], simdgroup.active, lane};
}

void wrote(const void* address, size_t size) {
  constexpr uint8_t unwritten[] = {
      0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF};
  if (memcmp(address, unwritten, size) == 0) {
    Inside inside;
    stored.insert(address);
  }
}

void unsupported(const char* what) {
  fail(std::string("unsupported: ") + what, __builtin_return_address(0));
}

void out_of_bounds(const char* file, int line, long long index) {
  fail(
      format("index %lld is out of bounds at %s:%d", index, file, line),
      nullptr);
}

} // namespace mlxgen_metal

namespace mlxgen_metal {
namespace {

/** A kernel accesses memory; `alignment` is that of the type. */
inline void
access(void* p, size_t size, size_t alignment, bool writes, const void* pc) {
  if (__builtin_expect(races::settle(), 0)) {
    stop(described_write(), races::pending.pc);
  }
  races::Watched* watched;
  if (auto region = region_of(p)) {
    auto at = size_t(static_cast<uint8_t*>(p) - region->copy);
    if (at >= region->size || size > region->size - at) {
      fail(outside(*region, p), pc);
    }
    watched = region->watched;
  } else {
    size_t at = size_t(static_cast<char*>(p) - arena);
    if (__builtin_expect(at < sizeof(arena) && at + size > arena_used, 0)) {
      fail("access beyond the threadgroup memory", pc);
    }
    watched = races::find(p);
    if (watched == nullptr) {
      return; // the thread's own memory
    }
  }
  if (__builtin_expect(reinterpret_cast<uintptr_t>(p) % alignment != 0, 0)) {
    auto what =
        "misaligned access to %s: its address must be a multiple of %zu";
    fail(format(what, named(static_cast<uint8_t*>(p)).c_str(), alignment), pc);
  }
  if (watched == nullptr) {
    return; // an input
  }
  races::Stamp other;
  auto race = races::access(*watched, p, size, writes, other, pc);
  if (__builtin_expect(race != races::none, 0)) {
    stop(described(static_cast<uint8_t*>(p), race, other), pc);
  }
}

} // namespace
} // namespace mlxgen_metal

// The compiler's calls for accesses to memory (-fsanitize=thread).
#define MLXGEN_HOOK(name, size, alignment, writes)        \
  void __tsan_##name##size(void* p) {                     \
    auto pc = __builtin_return_address(0);                \
    mlxgen_metal::access(p, size, alignment, writes, pc); \
  }
#define MLXGEN_ACCESS(size)                     \
  MLXGEN_HOOK(read, size, size, false)          \
  MLXGEN_HOOK(write, size, size, true)          \
  MLXGEN_HOOK(unaligned_read, size, 1, false)   \
  MLXGEN_HOOK(unaligned_write, size, 1, true)   \
  MLXGEN_HOOK(volatile_read, size, size, false) \
  MLXGEN_HOOK(volatile_write, size, size, true)
extern "C" {
MLXGEN_ACCESS(1)
MLXGEN_ACCESS(2)
MLXGEN_ACCESS(4)
MLXGEN_ACCESS(8)
MLXGEN_ACCESS(16)
#undef MLXGEN_ACCESS
#undef MLXGEN_HOOK
void __tsan_read_range(void* p, size_t size) {
  mlxgen_metal::access(p, size, 1, false, __builtin_return_address(0));
}
void __tsan_write_range(void* p, size_t size) {
  mlxgen_metal::access(p, size, 1, true, __builtin_return_address(0));
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
}

// The compiler's bounds check (-fsanitize=bounds) reports here.
extern "C" {

struct MismatchPlace {
  const char* file;
  uint32_t line;
  uint32_t column;
  const void* type;
  uint8_t alignment; // its logarithm
  uint8_t kind;
};

struct BoundsPlace {
  const char* file;
  uint32_t line;
  uint32_t column;
  const void* array;
  const void* index;
};

void __ubsan_handle_out_of_bounds(BoundsPlace* place, uintptr_t index) {
  mlxgen_metal::out_of_bounds(
      place->file, int(place->line), static_cast<long long>(index));
}

/** Alignment (-fsanitize=alignment); the sanitizer checks nothing else so. */
void __ubsan_handle_type_mismatch_v1(MismatchPlace* place, void* p) {
  using namespace mlxgen_metal;
  Inside inside;
  if (region_of(p) == nullptr && races::find(p) == nullptr) {
    return; // null, or the thread's own memory
  }
  auto what = "misaligned access to %s: its address must be a multiple of %zu";
  auto alignment = size_t(1) << place->alignment;
  fail(
      format(what, named(static_cast<uint8_t*>(p)).c_str(), alignment),
      __builtin_return_address(0));
}

void __ubsan_handle_type_mismatch_v1_abort(MismatchPlace* place, void* p) {
  __ubsan_handle_type_mismatch_v1(place, p);
}

void __ubsan_handle_out_of_bounds_abort(BoundsPlace* place, uintptr_t index) {
  __ubsan_handle_out_of_bounds(place, index);
}

int mlxgen_metal_launch(
    const mlxgen_metal::Library* library,
    mlxgen_metal::Launch* launch,
    char* message,
    size_t capacity) {
  using namespace mlxgen_metal;
  std::lock_guard<std::mutex> lock(launch_mutex);
  error.clear();
  error_pc = nullptr;
  error_thread.clear();
  stored.clear();
  entry = &library->entries[launch->entry];
  random_state = launch->seed;
  arena_used = max_threadgroup_memory; // all of it may be in use
  time_limit = limit_of(*launch);
  static std::vector<char> signal_stack(64 * 1024);
  stack_t stack{};
  stack_t old_stack{};
  stack.ss_sp = signal_stack.data();
  stack.ss_size = signal_stack.size();
  sigaltstack(&stack, &old_stack);
  struct sigaction action{};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  for (int i = 0; i < 3; ++i) {
    sigaction(fault_signals[i], &action, &old_actions[i]);
  }
  watch().start();
  check_arguments(*launch);
  void* pointers[max_buffers] = {};
  if (error.empty() && open_regions(*launch, pointers)) {
    run_grid(*launch, pointers);
  }
  watch().stop();
  for (auto& fiber : fibers) {
    if (fiber.stack != nullptr) {
      free_stacks.push_back(fiber.stack);
      fiber.stack = nullptr;
    }
  }
  running = nullptr;
  if (error.empty()) {
    check_slack();
  }
  if (error.empty()) {
    check_written();
  }
  close_regions(error.empty());
  for (int i = 0; i < 3; ++i) {
    sigaction(fault_signals[i], &old_actions[i], nullptr);
  }
  sigaltstack(&old_stack, nullptr);
  if (error.empty()) {
    return 0;
  }
  error = std::string(entry->name) + ": " + error + place_of(error_pc);
  if (!error_thread.empty()) {
    error += ", in " + error_thread;
  }
  snprintf(message, capacity, "%s", error.c_str());
  return int(error.size());
}
}
