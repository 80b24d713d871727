// Tensors in the payload of a packet: sent from where they lie, large ones used where they were
// received.
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

/// One tensor after the other, each from the next multiple of 64 bytes on; dtypes and shapes stand
/// in the head, so that nothing in the payload has to be believed. Every piece starts at such a
/// multiple.
class PayloadWriter {
 public:
  /// Large elements are not copied: the payload keeps the tensor's buffer, until all of its pieces
  /// have gone.
  void put(const Tensor& tensor);
  std::vector<SharedBytes> take();

 private:
  void flush();
  std::vector<SharedBytes> pieces_;
  std::shared_ptr<std::vector<Tensor>> tensors_;  // what the pieces lie in; kept by each of them
  std::vector<std::byte> small_;  // small tensors and ends of large ones, since the last piece
};

/// Which tensors stay where they were received, in memory that they share with all of the payload.
/// kLarge: those that are most of it, so that who keeps one keeps little else. kAll: for who uses
/// them up, or copies what is kept.
enum class InPlace { kLarge, kAll };

/// Reads what PayloadWriter wrote, however it was cut on the way.
class PayloadReader {
 public:
  explicit PayloadReader(const Packet& packet, InPlace in_place = InPlace::kLarge);
  /// The next tensor. Throws kDataLoss, before it takes memory, for one that is longer than the
  /// rest, an unknown type, a shape that is none, and for bools that are neither 0 nor 1.
  Tensor take(std::uint64_t dtype, std::span<const std::int64_t> dims);
  /// Throws kDataLoss unless all was read.
  void finish() const;

 private:
  Tensor take_in_place(const Shape& shape, DType dtype, std::size_t size);
  void copy(std::byte* out, std::size_t count);
  std::span<const SharedBytes> pieces_;
  const InPlace in_place_;
  std::size_t offset_ = 0;  // in the first piece
  std::size_t left_ = 0;
};

/// A tensor of these bytes, copied. Throws kDataLoss as PayloadReader::take(), and for bytes that
/// are not exactly its elements.
Tensor tensor_of_bytes(std::uint64_t dtype, std::span<const std::int64_t> dims,
                       std::span<const std::byte> bytes);
/// Throws kDataLoss unless `dims` are a shape whose elements can be counted.
Shape checked_shape(std::span<const std::int64_t> dims);
/// Throws kDataLoss for a number that is no dtype.
DType checked_dtype(std::uint64_t number);

}  // namespace tutti::internal
