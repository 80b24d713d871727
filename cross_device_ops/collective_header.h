// Header that describes a rank's call, so that a mismatch causes an error instead of a hang;
// reasons why a call ended.
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

/// Kinds of differences between two ranks' calls.
enum class Mismatch {
  kGroup,
  kOrder,
  kOperation,
  kReduceOp,
  kDType,
  kDevice,  // GPU memory on one rank, host memory on another
  kCount,
  kShape,
  kRoot,
  kName,
  kArguments,  // one rank's arguments are invalid
};
std::string_view to_string(Mismatch mismatch);

/// Header of a call, equal on all ranks except for rank, call site and names_seen. A plain value
/// without padding, encoded in kEncodedHeaderBytes bytes as a copy of its memory.
struct CollectiveHeader {
  std::uint64_t sequence = 0;  // number of this call in its group, from 0
  std::uint64_t group = 0;     // hash of the group's members and the group's number
  /// Number of elements: in the whole buffer for all_reduce, reduce, broadcast and reduce_scatter,
  /// on all ranks together for all_gather; 0 for all_to_all and barrier.
  std::uint64_t count = 0;
  std::uint64_t counts_hash = 0;  // hash of uneven counts
  std::uint64_t shape_hash = 0;   // 0: no shape given
  std::uint64_t name_hash = 0;
  std::uint64_t names_seen = 0;  // hash bits of earlier names; see remember_name()
  std::int32_t root = 0;
  std::int32_t rank = 0;
  std::uint32_t line : 31 = 0;
  std::uint32_t on_gpu : 1 = 0;
  Collective collective = Collective::kAllReduce;
  ReduceOp op : 8 = ReduceOp::kSum;
  DType dtype = DType::kFloat32;
  std::uint8_t refused = 0;      // 1: this rank cannot make the call
  std::array<char, 48> name{};   // truncated, null-terminated
  std::array<char, 40> file{};   // end of the source file's path
  std::array<char, 40> shape{};  // shape as a string, truncated

  /// Marks a call that this rank cannot make and only announces to the other ranks. The reason
  /// replaces the name and the shape, and is truncated to fit.
  void refuse(std::string_view reason);
  bool is_refused() const { return refused != 0; }
  /// Returns a hash of all fields that must be equal on all ranks.
  std::uint64_t fingerprint() const;
  /// Records the current name by setting two of the 64 bits of names_seen, which suffices to
  /// distinguish a changed order of calls from a new name.
  void remember_name();
  /// Returns the first difference; nullopt for equal calls. Returns kOrder if the sequence numbers
  /// differ, or if each rank has already made a call with the other's name.
  std::optional<Mismatch> difference(const CollectiveHeader& other) const;
  /// Returns "all_reduce(SUM, float32 x 4096, 'dense/kernel') #17 at step.cc:41".
  std::string describe() const;
};

inline constexpr std::size_t kEncodedHeaderBytes = 208;
using EncodedHeader = std::array<std::byte, kEncodedHeaderBytes>;
EncodedHeader encode(const CollectiveHeader& header);
/// Throws kDataLoss if the bytes are not a valid header: wrong magic, enumerators or text.
CollectiveHeader decode_header(std::span<const std::byte> bytes);

/// Returns "collective mismatch (dtype): rank 0 calls all_reduce(...) #17 at a.cc:3; rank ...".
std::string mismatch_message(const CollectiveHeader& a, const CollectiveHeader& b);

/// Text that every error about ranks that did not join in time contains.
inline constexpr std::string_view kMissing = " before the deadline; ";

/// Returns true if the error reports that two ranks' calls differ.
bool is_mismatch(const Error& error);

/// Restores the code of an error that another rank reported as kAborted with the original text:
/// kInvalidArgument for a mismatch, and kDeadlineExceeded for ranks that did not join. Returns any
/// other error unchanged. All ranks therefore throw the same code.
Error as_it_was(const Error& error);

}  // namespace tutti::internal
