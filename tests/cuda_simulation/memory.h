// Memory of the simulated GPUs: one range of addresses that only work in streams may touch.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

namespace tutti::cuda_simulation {

/// Blocks of each GPU, first fit. Not for several threads.
class Arena {
 public:
  Arena(int num_gpus, std::size_t bytes_each, bool guard);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// nullptr when no gap is large enough. Filled with 0xCD, aligned to 256 bytes (and no more).
  void* allocate(int gpu, std::size_t bytes);
  enum class Freed { kYes, kNoBlock, kOverrun };
  /// kOverrun: freed, but something wrote behind its end.
  Freed release(void* data);

  /// Where [data, data + bytes) lies: the GPU whose one block holds all of it, or kHost.
  static constexpr int kHost = -1, kNowhere = -2;
  int gpu_of(const void* data, std::size_t bytes = 1) const;

  std::size_t total() const { return bytes_each_; }
  std::size_t used(int gpu) const { return used_[static_cast<std::size_t>(gpu)]; }
  std::size_t num_blocks() const { return blocks_.size(); }

  /// While one of these lives the memory can be touched.
  class Opened {
   public:
    explicit Opened(Arena& arena) : arena_(arena) {
      if (arena_.depth_++ == 0) arena_.protect(false);
    }
    ~Opened() {
      if (--arena_.depth_ == 0) arena_.protect(true);
    }
    Opened(const Opened&) = delete;
    Opened& operator=(const Opened&) = delete;

   private:
    Arena& arena_;
  };

 private:
  struct Block {
    std::size_t bytes = 0, span = 0;
  };
  void protect(bool closed);

  const std::size_t bytes_each_;
  const std::size_t bytes_;
  const bool guard_;
  std::byte* base_ = nullptr;
  int depth_ = 0;
  std::map<std::size_t, Block> blocks_;  // by offset
  std::vector<std::size_t> used_;
};

}  // namespace tutti::cuda_simulation
