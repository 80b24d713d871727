// Tensors in the payload of a packet. Large tensors are sent without a copy, and can stay in the
// memory in which they were received.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tutti/cluster/rpc/packet.h"
#include "tutti/tensor/tensor.h"

namespace tutti::internal {

/// Writer that stores tensors one after the other. Every tensor and every chunk starts at a
/// multiple of 64 bytes. Types and shapes are in the packet's head, so that readers need not trust
/// the payload.
class PayloadWriter {
 public:
  /// Appends a tensor. Large tensors are not copied: the payload keeps their buffers until its last
  /// chunk is destroyed.
  void put(const Tensor& tensor);
  std::vector<SharedBytes> take();

 private:
  void flush();
  std::vector<SharedBytes> pieces_;
  std::shared_ptr<std::vector<Tensor>> tensors_;  // tensors whose bytes are not copied
  std::vector<std::byte> small_;  // next chunk: small tensors, and the ends of large ones
};

/// Selects the tensors that stay in the receive buffer of the payload. kLarge: only a tensor that
/// fills most of the buffer, so that it keeps little other memory alive. kAll: every tensor that
/// one chunk contains, for code that consumes tensors or copies those that it keeps.
enum class InPlace { kLarge, kAll };

/// Reader of a PayloadWriter's payload, which may have been split anywhere in transit.
class PayloadReader {
 public:
  explicit PayloadReader(const Packet& packet, InPlace in_place = InPlace::kLarge);
  /// Returns the next tensor. Throws kDataLoss for a tensor longer than the rest of the payload, an
  /// unknown type or an invalid shape (before it allocates memory), and for bools that are neither
  /// 0 nor 1.
  Tensor take(std::uint64_t dtype, std::span<const std::int64_t> dims);
  /// Throws kDataLoss unless the whole payload was read.
  void finish() const;

 private:
  Tensor take_in_place(const Shape& shape, DType dtype, std::size_t size);
  void copy(std::byte* out, std::size_t count);
  std::span<const SharedBytes> pieces_;
  const InPlace in_place_;
  std::size_t offset_ = 0;  // offset in the first chunk
  std::size_t left_ = 0;
};

/// Throws kDataLoss unless `dims` is a shape whose number of elements can be represented.
Shape checked_shape(std::span<const std::int64_t> dims);
/// Throws kDataLoss for a number that is not a dtype.
DType checked_dtype(std::uint64_t number);

}  // namespace tutti::internal
