// Memory that the ranks of one host share, as an interface.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "tensor/buffer_allocator.h"

namespace tutti {

/// Every rank has a *place*: a range of memory that all ranks of the transport map, each at an
/// address of its own, so what travels is offsets from its start. Threads: any.
class HostMemory {
 public:
  virtual ~HostMemory() = default;
  virtual int rank() const = 0;
  /// Where the place of a rank begins in this process; valid as long as this object lives.
  virtual std::byte* place(int rank) const = 0;
  virtual std::size_t place_bytes(int rank) const = 0;

  enum class Use {
    kBuffers,  // of the program
    kWindow,   // of a group
  };
  /// `bytes` of zeros in the own place, at an offset that is a multiple of the page; present, so
  /// that touching them cannot fail. Throws kResourceExhausted.
  virtual std::size_t allocate(std::size_t bytes, Use use) = 0;
  virtual void release(std::size_t offset) noexcept = 0;
  /// Releases it in a later call, once `may_go()`; never blocks.
  virtual void release_when(std::size_t offset, std::function<bool()> may_go) = 0;

  /// What the peers write into buffers in the own place from now on does not arrive, while their
  /// content and addresses stay: for a rank that gives up while others may still be at work.
  virtual void detach() noexcept = 0;
  virtual bool is_detached() const = 0;

  /// Of memory that lies within the own place and is not detached; else nothing.
  std::optional<std::size_t> offset_of(const std::byte* data, std::size_t bytes) const {
    const auto at = reinterpret_cast<std::uintptr_t>(data);
    const auto begin = reinterpret_cast<std::uintptr_t>(place(rank()));
    if (at < begin || at - begin > place_bytes(rank()) ||
        bytes > place_bytes(rank()) - (at - begin) || is_detached()) {
      return std::nullopt;
    }
    return at - begin;
  }
};

/// Buffers in the own place: collectives reach them without a copy.
std::shared_ptr<BufferAllocator> allocator_in(std::shared_ptr<HostMemory> memory);

}  // namespace tutti
