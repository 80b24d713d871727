// What every rank says of its call, so that a mismatch is an error and not a hang;
// why a call ended.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tutti/core/error.h"
#include "tutti/cross_device_ops/collective.h"

namespace tutti::internal {

/// The ways in which two ranks' calls can differ.
enum class Mismatch {
  kGroup,
  kOrder,
  kOperation,
  kReduceOp,
  kDType,
  kDevice,  // memory of GPUs and of hosts
  kCount,
  kShape,
  kRoot,
  kName,
  kCompression,
  kArguments,  // one of them refuses its own call
};
std::string_view to_string(Mismatch mismatch);

/// Equal on all ranks but for rank, call site and names_seen. A plain value without gaps, which
/// travels as it lies in memory, in kEncodedHeaderBytes.
struct CollectiveHeader {
  std::uint64_t sequence = 0;  // of this call in its group, from 0
  std::uint64_t group = 0;     // fingerprint of the group's members and its number
  /// Elements that take part: of the whole buffer for all_reduce, reduce, broadcast and
  /// reduce_scatter, of all ranks together for all_gather; 0 for all_to_all and barrier.
  std::uint64_t count = 0;
  std::uint64_t counts_hash = 0;  // of uneven parts
  std::uint64_t shape_hash = 0;   // 0: the caller gave none
  std::uint64_t name_hash = 0;
  std::uint64_t names_seen = 0;  // of this rank's calls so far, see remember_name()
  std::int32_t root = 0;
  std::int32_t rank = 0;
  std::uint32_t line : 31 = 0;
  std::uint32_t on_gpu : 1 = 0;
  Collective collective = Collective::kAllReduce;
  ReduceOp op : 8 = ReduceOp::kSum;
  DType dtype = DType::kFloat32;
  std::uint8_t compression = 0;  // 0, or 1 + the DType of the wire; or kRefused
  std::array<char, 48> name{};   // cut, ended by 0
  std::array<char, 40> file{};   // the end of the path
  std::array<char, 40> shape{};  // text, cut

  static constexpr std::uint8_t kRefused = 255;
  /// This rank cannot make this call, and meets the others to say so. The reason stands where name
  /// and shape do, as far as there is room.
  void refuse(std::string_view reason);
  bool is_refused() const { return compression == kRefused; }
  /// One number for all that must be equal: equal headers have equal ones.
  std::uint64_t fingerprint() const;
  /// Notes the name as seen: two bits of 64, enough to tell an order from a new name.
  void remember_name();
  /// The first difference; nothing: the same call. kOrder: the sequence numbers differ, or each
  /// side's name was one of the other's before.
  std::optional<Mismatch> difference(const CollectiveHeader& other) const;
  /// "all_reduce(SUM, float32 x 4096, 'dense/kernel') #17 at step.cc:41".
  std::string describe() const;
};

inline constexpr std::size_t kEncodedHeaderBytes = 208;
using EncodedHeader = std::array<std::byte, kEncodedHeaderBytes>;
EncodedHeader encode(const CollectiveHeader& header);
/// Throws kDataLoss for bytes that are no header: wrong magic, version, enumerators, unended text.
CollectiveHeader decode_header(std::span<const std::byte> bytes);

/// "collective mismatch (dtype): rank 0 calls all_reduce(...) #17 at a.cc:3; rank 2 calls ...".
std::string mismatch_message(const CollectiveHeader& a, const CollectiveHeader& b);

/// In the text of every error about ranks that did not come in time.
inline constexpr std::string_view kMissing = " before the deadline; ";

/// Whether an error says that two ranks' calls differ.
bool is_mismatch(const Error& error);

/// Reasons of other ranks come as kAborted with their text, which says what it was: the same error
/// with the code that the rank threw that found out, so that all ranks throw the same.
Error as_it_was(const Error& error);

}  // namespace tutti::internal
