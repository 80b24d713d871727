// What all oneDNN kernels share: engine, threads, scratchpad, the cache of primitives. Internal.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>
#include <dnnl.hpp>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <vector>

#include "tutti/tensor/buffer.h"

namespace tutti::internal {

/// The CPU engine. The first call caps the instruction set (vectorized.h).
const dnnl::engine& onednn_engine();

/// While one lives, oneDNN uses one thread for what this thread makes and runs: its results depend
/// on the number. The OpenMP setting of the calling thread comes back afterwards.
class OneThread {
 public:
  OneThread();
  ~OneThread();
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int previous_;
};

/// While one lives, this thread handles no signal; those that come wait. oneDNN's matrix products
/// keep a pointer to their workspace in the stack pointer (2.6.3, AVX-512), and the system puts a
/// handler's frame where that points: into the heap. Faults are not held back.
class SignalsHeld {
 public:
  SignalsHeld();
  ~SignalsHeld();
  SignalsHeld(const SignalsHeld&) = delete;
  SignalsHeld& operator=(const SignalsHeld&) = delete;

 private:
  sigset_t previous_;
};

/// A memory object over a plain buffer.
dnnl::memory onednn_memory(const dnnl::memory::desc& description, const void* data);

/// Runs `primitive` with this thread's stream and scratchpad. Needs a OneThread, as making
/// primitives does.
void onednn_run(const dnnl::primitive& primitive, std::unordered_map<int, dnnl::memory> arguments,
                const dnnl::memory::desc& scratchpad);

/// Attributes that every primitive has.
dnnl::primitive_attr onednn_attributes();

/// Made primitives of one kind by the numbers that describe them; what was not used for longest
/// makes room. One cache per thread.
template <class Entry>
class PrimitiveCache {
 public:
  using Key = std::vector<std::int64_t>;
  static constexpr std::size_t kMaxEntries = 128;

  /// Valid until the next call.
  template <class Make>
  const Entry& get(const Key& key, const Make& make) {
    auto found = slots_.find(key);
    if (found == slots_.end()) {
      if (slots_.size() >= kMaxEntries) slots_.erase(least_recent());
      found = slots_.emplace(key, Slot{make(), 0}).first;
    }
    found->second.used = ++clock_;
    return found->second.entry;
  }

 private:
  struct Slot {
    Entry entry;
    std::uint64_t used;
  };
  auto least_recent() {
    return std::ranges::min_element(slots_, {}, [](const auto& slot) { return slot.second.used; });
  }

  std::map<Key, Slot> slots_;
  std::uint64_t clock_ = 0;
};

}  // namespace tutti::internal
