// Comparison, description and encoding of the headers of collective calls.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/collective_header.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "tutti/core/text.h"

namespace tutti::internal {

namespace {

constexpr std::uint32_t kMagic = 0x34435454;  // "TTC4": layout 4
static_assert(std::endian::native == std::endian::little,
              "headers are encoded as little-endian copies");
static_assert(std::has_unique_object_representations_v<CollectiveHeader>,
              "a header must have no padding");
static_assert(sizeof(kMagic) + sizeof(CollectiveHeader) <= kEncodedHeaderBytes);

std::uint64_t mixed_with(std::uint64_t hash, std::uint64_t value) {
  // The multiply-fold of wyhash: takes a few cycles and mixes all bits.
  const auto product = static_cast<unsigned __int128>(hash ^ value) * 0x9E3779B97F4A7C15u;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

std::string_view text_of(std::span<const char> text) {
  return {text.data(), ::strnlen(text.data(), text.size())};
}

void require_valid(const CollectiveHeader& h) {
  const auto damaged = [](std::string_view what, auto value) {
    fail(ErrorCode::kDataLoss, "collective header: unknown ", what, " ", value,
         "; run the same version of tutti on all ranks");
  };
  if (h.collective > Collective::kBarrier) damaged("collective", static_cast<int>(h.collective));
  const auto op = static_cast<std::uint8_t>(h.op);  // the signed bit-field may be negative
  if (op > static_cast<std::uint8_t>(ReduceOp::kProduct)) damaged("reduction", int{op});
  if (h.dtype > DType::kFloat16) damaged("type", static_cast<int>(h.dtype));
  if (h.refused > 1) damaged("refusal", static_cast<int>(h.refused));
  using Text = std::span<const char>;
  for (const Text text : {Text(h.name), Text(h.file), Text(h.shape)}) {
    if (text.back() != '\0') damaged("text", text_of(text));
  }
}

std::uint64_t bits_of_name(std::uint64_t hash) {
  return std::uint64_t{1} << (hash >> 58) | std::uint64_t{1} << (hash >> 52 & 63);
}

bool has_seen(const CollectiveHeader& header, std::uint64_t name_hash) {
  const std::uint64_t bits = bits_of_name(name_hash);
  return name_hash != 0 && (header.names_seen & bits) == bits;
}

}  // namespace

std::string_view to_string(Mismatch mismatch) {
  constexpr std::string_view kNames[] = {"group", "order",  "operation", "reduce op",
                                         "dtype", "device", "count",     "shape",
                                         "root",  "name",   "arguments"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(Mismatch::kArguments) + 1);
  return kNames[static_cast<std::size_t>(mismatch)];
}

std::uint64_t CollectiveHeader::fingerprint() const {
  const std::uint64_t kinds =
      static_cast<std::uint64_t>(collective) | static_cast<std::uint64_t>(op) << 8 |
      static_cast<std::uint64_t>(on_gpu) << 15 | static_cast<std::uint64_t>(dtype) << 16 |
      static_cast<std::uint64_t>(refused) << 24 |
      static_cast<std::uint64_t>(static_cast<std::uint32_t>(root)) << 32;
  // Uses two chains, so that the multiplications overlap.
  const std::uint64_t a =
      mixed_with(mixed_with(0x2545F4914F6CDD1Du, kinds ^ sequence), count ^ group);
  const std::uint64_t b =
      mixed_with(mixed_with(0x9E6C63D0876A9A35u, name_hash), counts_hash ^ shape_hash);
  return a ^ b;
}

void CollectiveHeader::refuse(std::string_view reason) {
  refused = 1;
  name.fill('\0');
  shape.fill('\0');
  const std::string_view first = reason.substr(0, name.size() - 1);
  const std::string_view rest = reason.substr(first.size(), shape.size() - 1);
  std::ranges::copy(first, name.begin());
  std::ranges::copy(rest, shape.begin());
}

void CollectiveHeader::remember_name() {
  if (name_hash != 0) names_seen |= bits_of_name(name_hash);
}

std::optional<Mismatch> CollectiveHeader::difference(const CollectiveHeader& other) const {
  if (group != other.group) return Mismatch::kGroup;
  if (sequence != other.sequence) return Mismatch::kOrder;
  if (is_refused() != other.is_refused()) return Mismatch::kArguments;
  if (name_hash != other.name_hash && has_seen(other, name_hash) &&
      has_seen(*this, other.name_hash)) {
    return Mismatch::kOrder;
  }
  if (collective != other.collective) return Mismatch::kOperation;
  if (op != other.op && combines(collective)) return Mismatch::kReduceOp;
  if (dtype != other.dtype) return Mismatch::kDType;
  if (on_gpu != other.on_gpu) return Mismatch::kDevice;
  if (root != other.root && has_root(collective)) return Mismatch::kRoot;
  if (count != other.count || counts_hash != other.counts_hash) return Mismatch::kCount;
  if (shape_hash != other.shape_hash) return Mismatch::kShape;
  if (name_hash != other.name_hash) return Mismatch::kName;
  return std::nullopt;
}

std::string CollectiveHeader::describe() const {
  std::string text = concat(to_string(collective), "(");
  if (combines(collective)) text += concat(op, ", ");
  if (collective != Collective::kBarrier) text += concat(dtype, " x ", count);
  if (on_gpu != 0) text += text.back() == '(' ? "on a GPU" : " on a GPU";
  if (counts_hash != 0) text += " in uneven parts";
  if (shape[0] != '\0' && !is_refused()) text += concat(" ", text_of(shape));
  if (has_root(collective)) text += concat(", root ", root);
  if (name[0] != '\0' && !is_refused()) {
    text += concat(text.back() == '(' ? "'" : ", '", text_of(name), "'");
  }
  text += concat(") #", sequence);
  if (file[0] != '\0') text += concat(" at ", text_of(file), ":", line);
  if (is_refused()) text += concat(", which it refuses: ", text_of(name), text_of(shape));
  return text;
}

EncodedHeader encode(const CollectiveHeader& header) {
  EncodedHeader bytes{};
  std::memcpy(bytes.data(), &kMagic, sizeof(kMagic));
  std::memcpy(bytes.data() + sizeof(kMagic), &header, sizeof(header));
  return bytes;
}

CollectiveHeader decode_header(std::span<const std::byte> bytes) {
  if (bytes.size() != kEncodedHeaderBytes) {
    fail(ErrorCode::kDataLoss, "collective header: expected ", kEncodedHeaderBytes, " bytes, got ",
         bytes.size());
  }
  std::uint32_t magic = 0;
  std::memcpy(&magic, bytes.data(), sizeof(magic));
  if (magic != kMagic) {
    fail(ErrorCode::kDataLoss, "collective header: expected the magic number ", kMagic, ", got ",
         magic, "; the peer runs a different version or sends something else");
  }
  CollectiveHeader header;
  std::memcpy(static_cast<void*>(&header), bytes.data() + sizeof(magic), sizeof(header));
  require_valid(header);
  return header;
}

std::string mismatch_message(const CollectiveHeader& a, const CollectiveHeader& b) {
  const CollectiveHeader& first = a.rank <= b.rank ? a : b;
  const CollectiveHeader& second = a.rank <= b.rank ? b : a;
  const std::optional<Mismatch> kind = first.difference(second);
  return concat("collective mismatch (", kind ? to_string(*kind) : "none", "): rank ", first.rank,
                " calls ", first.describe(), "; rank ", second.rank, " calls ", second.describe(),
                "; expected the same call in the same order on every rank");
}

namespace {

constexpr std::string_view kMismatch = "collective mismatch (";

}  // namespace

bool is_mismatch(const Error& error) {
  return error.message().find(kMismatch) != std::string::npos;
}

Error as_it_was(const Error& error) {
  if (is_mismatch(error)) {  // the prefix names the reporting rank
    return Error(ErrorCode::kInvalidArgument,
                 error.message().substr(error.message().find(kMismatch)));
  }
  const bool is_missing = error.message().find(kMissing) != std::string::npos;
  if (error.code() == ErrorCode::kAborted && is_missing) {
    return Error(ErrorCode::kDeadlineExceeded, error.message());
  }
  return error;
}

}  // namespace tutti::internal
