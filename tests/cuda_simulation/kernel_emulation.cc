// Runs the threads of emulated kernels: one by one, or as fibers that meet at barriers.
// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_simulation/kernel_emulation.h"

#include <ucontext.h>

#include <array>
#include <cstddef>
#include <exception>
#include <memory>
#include <vector>

#include "tests/cuda_simulation/fiber_sanitizers.h"
#include "tutti/core/error.h"

namespace tutti::cuda_simulation {
namespace {

constexpr std::size_t kStackBytes = 64 * 1024;
constexpr int kWarp = 32;

uint3 place_in(dim3 extent, unsigned index) {
  return {index % extent.x, index / extent.x % extent.y, index / (extent.x * extent.y)};
}

/// One block whose threads are fibers. At most one exists per host thread.
class FiberBlock {
 public:
  FiberBlock(dim3 block, const std::function<void()>& thread)
      : block_(block), thread_(thread), fibers_(block.x * block.y * block.z) {
    for (Fiber& fiber : fibers_) {
      fiber.stack = std::make_unique_for_overwrite<std::byte[]>(kStackBytes);
    }
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
    ucontext_t context{};
    std::unique_ptr<std::byte[]> stack;
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
  }

  void start(std::size_t index) {
    Fiber& fiber = fibers_[index];
    fiber.state = State::kReady;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = &scheduler_;
    fiber.known.forget();  // of the block before
    fiber.known = StackForSanitizers(fiber.stack.get(), kStackBytes);
    makecontext(&fiber.context, &FiberBlock::enter, 0);
  }

  void stop(State state) {
    Fiber& fiber = fibers_[running_];
    fiber.state = state;
    fiber.known.leave_to(scheduler_known_);
    swapcontext(&fiber.context, &scheduler_);
    fiber.known.arrive(scheduler_known_);
  }

  bool run_all_ready() {
    bool any = false;
    for (running_ = 0; running_ < fibers_.size(); ++running_) {
      if (fibers_[running_].state != State::kReady) continue;
      any = true;
      threadIdx = place_in(block_, static_cast<unsigned>(running_));
      scheduler_known_.leave_to(fibers_[running_].known);
      swapcontext(&scheduler_, &fibers_[running_].context);
      scheduler_known_.arrive(fibers_[running_].known);
    }
    return any;
  }

  /// Lets fibers [first, end) go on if all that still run are in `state`.
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
                  "emulated kernel: some threads wait at a barrier that others never reach");
    }
    return false;
  }

  const dim3 block_;
  const std::function<void()>& thread_;
  std::vector<Fiber> fibers_;
  std::vector<std::array<std::uint64_t, kWarp>> slots_;
  ucontext_t scheduler_{};
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
