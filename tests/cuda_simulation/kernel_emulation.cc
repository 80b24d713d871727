// Runs the threads of emulated kernels: one after another, or as fibers synchronised by barriers.
// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_simulation/kernel_emulation.h"

#include <setjmp.h>
#include <ucontext.h>

#include <array>
#include <cstddef>
#include <exception>
#include <memory>
#include <vector>

#include "tests/support/sanitizers.h"
#include "tutti/core/error.h"

#if defined(TUTTI_UNDER_ASAN)
#include <sanitizer/common_interface_defs.h>
#elif defined(TUTTI_UNDER_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

// ThreadSanitizer counts calls and returns per stack. A function that switches stacks would be
// called on one stack and return on another, so it must be inlined.
#define TUTTI_SWITCHES_STACKS inline __attribute__((always_inline))
// With clang, functions marked no_sanitize_thread still report their calls to TSan.
#if defined(TUTTI_UNDER_TSAN) && defined(__clang__)
#define TUTTI_NEVER_RETURNS_TO_ITS_STACK __attribute__((disable_sanitizer_instrumentation))
#elif defined(TUTTI_UNDER_TSAN)
#define TUTTI_NEVER_RETURNS_TO_ITS_STACK __attribute__((no_sanitize_thread))
#else
#define TUTTI_NEVER_RETURNS_TO_ITS_STACK
#endif

namespace tutti::cuda_simulation {
namespace {

constexpr std::size_t kStackBytes = 64 * 1024;
constexpr int kWarp = 32;

/// Stack that is reported to the sanitizers when a thread switches stacks. Does nothing without
/// sanitizers.
class StackForSanitizers {
 public:
  StackForSanitizers() = default;
  StackForSanitizers(const void* bottom, std::size_t bytes) : bottom_(bottom), bytes_(bytes) {
#if defined(TUTTI_UNDER_TSAN)
    fiber_ = __tsan_create_fiber(0);
#endif
  }

  /// Must be called immediately before the context switches from this stack to `next`.
  TUTTI_SWITCHES_STACKS void leave_to([[maybe_unused]] const StackForSanitizers& next) {
#if defined(TUTTI_UNDER_ASAN)
    __sanitizer_start_switch_fiber(&fake_, next.bottom_, next.bytes_);
#elif defined(TUTTI_UNDER_TSAN)
    if (!fiber_) fiber_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(next.fiber_, 0);
#endif
  }
  /// Must be called immediately after the context switch to this stack. `from` is the stack that
  /// was left.
  void arrive([[maybe_unused]] StackForSanitizers& from) {
#if defined(TUTTI_UNDER_ASAN)
    __sanitizer_finish_switch_fiber(fake_, &from.bottom_, &from.bytes_);
#endif
  }
  /// Same as leave_to(), but must be called if the thread never returns to this stack.
  TUTTI_SWITCHES_STACKS void end_to([[maybe_unused]] const StackForSanitizers& next) {
#if defined(TUTTI_UNDER_ASAN)
    __sanitizer_start_switch_fiber(nullptr, next.bottom_, next.bytes_);
#elif defined(TUTTI_UNDER_TSAN)
    __tsan_switch_to_fiber(next.fiber_, 0);
#endif
  }
  /// Destroys ThreadSanitizer's fiber. Must be called when the stack is no longer in use.
  void forget() {
#if defined(TUTTI_UNDER_TSAN)
    if (fiber_) __tsan_destroy_fiber(fiber_);
    fiber_ = nullptr;
#endif
  }

 private:
  [[maybe_unused]] const void* bottom_ = nullptr;
  [[maybe_unused]] std::size_t bytes_ = 0;
  [[maybe_unused]] void* fake_ = nullptr;
  [[maybe_unused]] void* fiber_ = nullptr;
};

uint3 place_in(dim3 extent, unsigned index) {
  return {index % extent.x, index / extent.x % extent.y, index / (extent.x * extent.y)};
}

/// Point at which a stack resumes. Uses longjmp(), because swapcontext() makes a system call for
/// the signal mask, which takes longer than the work of most kernels between two barriers. Builds
/// with sanitizers, which do not support longjmp() between stacks, use swapcontext().
struct Continuation {
  ucontext_t context{};  // used when a stack first starts or, with sanitizers, at every switch
#if !defined(TUTTI_UNDER_ASAN) && !defined(TUTTI_UNDER_TSAN)
  jmp_buf registers;
  bool is_started = true;
#endif
};

#if defined(TUTTI_UNDER_ASAN) || defined(TUTTI_UNDER_TSAN)
TUTTI_SWITCHES_STACKS void switch_stacks(Continuation& from, Continuation& to) {
  swapcontext(&from.context, &to.context);
}
#else
void switch_stacks(Continuation& from, Continuation& to) {
  if (_setjmp(from.registers) != 0) return;
  if (to.is_started) _longjmp(to.registers, 1);
  to.is_started = true;
  setcontext(&to.context);
}
#endif

/// Block of a kernel whose threads are fibers. A host thread runs one such block at a time.
class FiberBlock {
 public:
  FiberBlock(dim3 block, const std::function<void()>& thread)
      : block_(block), thread_(thread), fibers_(block.x * block.y * block.z) {
    thread_local std::vector<std::unique_ptr<std::byte[]>> stacks;
    while (stacks.size() < fibers_.size()) {
      stacks.push_back(std::make_unique_for_overwrite<std::byte[]>(kStackBytes));
    }
    for (std::size_t i = 0; i < fibers_.size(); ++i) fibers_[i].stack = stacks[i].get();
    getcontext(&blank_);
    slots_.resize((fibers_.size() + kWarp - 1) / kWarp);
  }

  ~FiberBlock() {
    current() = nullptr;
    for (Fiber& fiber : fibers_) fiber.known.forget();
  }
  FiberBlock(const FiberBlock&) = delete;
  FiberBlock& operator=(const FiberBlock&) = delete;

  static FiberBlock*& current() {
    thread_local FiberBlock* block = nullptr;
    return block;
  }

  void run() {
    current() = this;
    for (std::size_t i = 0; i < fibers_.size(); ++i) start(i);
    while (run_all_ready() || release_warps() || release_block()) {
    }
    if (failure_) std::rethrow_exception(failure_);
  }

  void wait_for_block() { stop(State::kAtBlockBarrier); }
  void wait_for_warp() { stop(State::kAtWarpBarrier); }
  std::uint64_t& slot(int lane) { return slots_[running_ / kWarp][static_cast<std::size_t>(lane)]; }
  int lane() const { return static_cast<int>(running_ % kWarp); }

 private:
  enum class State { kReady, kAtWarpBarrier, kAtBlockBarrier, kDone };
  struct Fiber {
    Continuation point;
    std::byte* stack = nullptr;
    StackForSanitizers known;
    State state = State::kReady;
  };

  TUTTI_NEVER_RETURNS_TO_ITS_STACK static void enter() {
    FiberBlock& block = *current();
    block.fibers_[block.running_].known.arrive(block.scheduler_known_);
    try {
      block.thread_();
    } catch (...) {
      if (!block.failure_) block.failure_ = std::current_exception();
    }
    Fiber& fiber = block.fibers_[block.running_];
    fiber.state = State::kDone;
    fiber.known.end_to(block.scheduler_known_);
#if !defined(TUTTI_UNDER_ASAN) && !defined(TUTTI_UNDER_TSAN)
    _longjmp(block.scheduler_.registers, 1);  // with sanitizers, uc_link leads to the scheduler
#endif
  }

  void start(std::size_t index) {
    Fiber& fiber = fibers_[index];
    fiber.state = State::kReady;
    ucontext_t& context = fiber.point.context = blank_;
    context.uc_stack.ss_sp = fiber.stack;
    context.uc_stack.ss_size = kStackBytes;
    context.uc_link = &scheduler_.context;
    fiber.known.forget();  // destroys the previous block's fiber
    fiber.known = StackForSanitizers(fiber.stack, kStackBytes);
    makecontext(&context, &FiberBlock::enter, 0);
#if !defined(TUTTI_UNDER_ASAN) && !defined(TUTTI_UNDER_TSAN)
    fiber.point.is_started = false;
#endif
  }

  void stop(State state) {
    Fiber& fiber = fibers_[running_];
    fiber.state = state;
    fiber.known.leave_to(scheduler_known_);
    switch_stacks(fiber.point, scheduler_);
    fiber.known.arrive(scheduler_known_);
  }

  bool run_all_ready() {
    bool any = false;
    for (running_ = 0; running_ < fibers_.size(); ++running_) {
      if (fibers_[running_].state != State::kReady) continue;
      any = true;
      threadIdx = place_in(block_, static_cast<unsigned>(running_));
      scheduler_known_.leave_to(fibers_[running_].known);
      switch_stacks(scheduler_, fibers_[running_].point);
      scheduler_known_.arrive(fibers_[running_].known);
    }
    return any;
  }

  /// Makes fibers [first, end) ready if all of them that have not ended are in `state`. Returns
  /// true if any became ready.
  bool release(std::size_t first, std::size_t end, State state) {
    bool any = false;
    for (std::size_t i = first; i < end; ++i) {
      if (fibers_[i].state == State::kDone) continue;
      if (fibers_[i].state != state) return false;
      any = true;
    }
    for (std::size_t i = first; any && i < end; ++i) {
      if (fibers_[i].state == state) fibers_[i].state = State::kReady;
    }
    return any;
  }

  bool release_warps() {
    bool any = false;
    for (std::size_t first = 0; first < fibers_.size(); first += kWarp) {
      any = release(first, std::min(first + kWarp, fibers_.size()), State::kAtWarpBarrier) || any;
    }
    return any;
  }

  bool release_block() {
    if (release(0, fibers_.size(), State::kAtBlockBarrier)) return true;
    for (const Fiber& fiber : fibers_) {
      TUTTI_CHECK(fiber.state == State::kDone,
                  "emulated kernel: some threads wait at a barrier that other threads never reach");
    }
    return false;
  }

  const dim3 block_;
  const std::function<void()>& thread_;
  std::vector<Fiber> fibers_;
  std::vector<std::array<std::uint64_t, kWarp>> slots_;
  ucontext_t blank_{};  // template for the context of each fiber
  Continuation scheduler_;
  StackForSanitizers scheduler_known_;
  std::size_t running_ = 0;
  std::exception_ptr failure_;
};

template <class RunBlock>
void for_each_block(dim3 grid, dim3 block, const RunBlock& run_block) {
  gridDim = grid;
  blockDim = block;
  const unsigned num_blocks = grid.x * grid.y * grid.z;
  for (unsigned b = 0; b < num_blocks; ++b) {
    blockIdx = place_in(grid, b);
    run_block();
  }
}

FiberBlock& running_block(const char* what) {
  FiberBlock* const block = FiberBlock::current();
  TUTTI_CHECK(block, "emulated kernel: ", what,
              " in a kernel that launch() started; expected "
              "launch_cooperative()");
  return *block;
}

}  // namespace

void enqueue_alone(cudaStream_t stream, dim3 grid, dim3 block, std::function<void()> thread) {
  enqueue(stream, [grid, block, thread = std::move(thread)] {
    const unsigned num_threads = block.x * block.y * block.z;
    for_each_block(grid, block, [&] {
      for (unsigned t = 0; t < num_threads; ++t) {
        threadIdx = place_in(block, t);
        thread();
      }
    });
  });
}

void enqueue_cooperatively(cudaStream_t stream, dim3 grid, dim3 block,
                           std::function<void()> thread) {
  enqueue(stream, [grid, block, thread = std::move(thread)] {
    FiberBlock fibers(block, thread);
    for_each_block(grid, block, [&] { fibers.run(); });
  });
}

void block_barrier() { running_block("__syncthreads()").wait_for_block(); }
void warp_barrier() { running_block("a barrier of the warp").wait_for_warp(); }
std::uint64_t& warp_slot(int lane) { return running_block("a shuffle").slot(lane); }
int lane_of_this_thread() { return running_block("a shuffle").lane(); }

}  // namespace tutti::cuda_simulation
