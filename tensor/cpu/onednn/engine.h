// State that oneDNN kernels share: engine, threads, scratchpad, cache of primitives. Internal.
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

/// Returns the CPU engine. The first call caps the instruction set (vectorized.h).
const dnnl::engine& onednn_engine();

/// Scope that limits oneDNN to one thread for everything that this thread creates and runs, because
/// oneDNN's results depend on the number of threads. The destructor restores the calling thread's
/// OpenMP setting.
class SingleThreadScope {
 public:
  SingleThreadScope();
  ~SingleThreadScope();
  SingleThreadScope(const SingleThreadScope&) = delete;
  SingleThreadScope& operator=(const SingleThreadScope&) = delete;

 private:
  int previous_;
};

/// Scope that blocks all signals of this thread except faults, such as SIGSEGV. During matrix
/// products, oneDNN (2.6.3, AVX-512) points the stack pointer register at its workspace, so the
/// system would write a signal handler's frame into the heap.
class SignalsHeld {
 public:
  SignalsHeld();
  ~SignalsHeld();
  SignalsHeld(const SignalsHeld&) = delete;
  SignalsHeld& operator=(const SignalsHeld&) = delete;

 private:
  sigset_t previous_;
};

/// Returns a memory object over a plain buffer.
dnnl::memory onednn_memory(const dnnl::memory::desc& description, const void* data);

/// Runs `primitive` with this thread's stream and scratchpad. Requires a SingleThreadScope, as does
/// the creation of primitives.
void onednn_run(const dnnl::primitive& primitive, std::unordered_map<int, dnnl::memory> arguments,
                const dnnl::memory::desc& scratchpad);

/// Returns the attributes that all primitives use: the caller provides the scratchpad.
dnnl::primitive_attr onednn_attributes();

/// LRU cache of one kind of primitive, keyed by the numbers that describe a primitive. Each thread
/// has its own cache.
template <class Entry>
class PrimitiveCache {
 public:
  using Key = std::vector<std::int64_t>;
  static constexpr std::size_t kMaxEntries = 128;

  /// Returns the entry for `key`, created by make() if it is not cached. The reference is valid
  /// until the next call.
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
