// What all oneDNN kernels share: engine, the state of a thread, the cache of primitives. Internal.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dnnl.hpp>

#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "tutti/tensor/buffer.h"

namespace tutti::internal {

/// The CPU engine. The first call caps the instruction set by TUTTI_MAX_ISA (default avx2), so that
/// a newer processor gives the same bits.
const dnnl::engine& onednn_engine();
/// "avx2".
std::string onednn_isa_name();

/// This thread's stream. The first call on a thread makes oneDNN use one thread there: its results
/// depend on the number.
dnnl::stream& onednn_stream();

/// Work space of at least `bytes`, this thread's own, valid until the next call.
void* onednn_scratchpad(std::size_t bytes);

/// A memory object over a plain buffer.
dnnl::memory onednn_memory(const dnnl::memory::desc& description, const void* data);

/// Runs `primitive` with this thread's stream and scratchpad.
void onednn_run(const dnnl::primitive& primitive, std::unordered_map<int, dnnl::memory> arguments,
                const dnnl::memory::desc& scratchpad);

/// Attributes that every primitive has.
dnnl::primitive_attr onednn_attributes();

/// Made primitives of one kind by the numbers that describe them: one cache per thread, bounded.
template <class Entry>
class PrimitiveCache {
 public:
  using Key = std::vector<std::int64_t>;

  template <class Make>
  const Entry& get(const Key& key, const Make& make) {
    if (const auto found = entries_.find(key); found != entries_.end()) return found->second;
    if (entries_.size() >= kMaxEntries) entries_.clear();
    return entries_.emplace(key, make()).first->second;
  }

 private:
  static constexpr std::size_t kMaxEntries = 256;
  std::map<Key, Entry> entries_;
};

}  // namespace tutti::internal
