// Envelopes, slices that keep what they point to, and payloads put together.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/rpc/grpc/grpc_frames.h"

#include <google/protobuf/io/coded_stream.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "rpc.pb.h"
#include "tutti/cluster/handshake/byte_stream.h"
#include "tutti/core/crc32c.h"
#include "tutti/tensor/cpu/copy_past_caches.h"

namespace tutti::internal {
namespace {

/// Shorter pieces are cheaper to copy than to keep.
constexpr std::size_t kWorthKeeping = 4096;
/// Pieces that are shorter go together: each slice costs gRPC more than copying so much.
constexpr std::size_t kWorthSlice = std::size_t{16} << 10;
constexpr std::size_t kPrefixBytes = 8;
/// Payloads from here on have left the caches when they are whole.
constexpr std::size_t kPastCaches = std::size_t{8} << 20;

/// Sums and copies in blocks that stay in the first cache in between.
std::uint32_t copy_and_sum(std::span<const std::byte> from, std::byte* to, std::uint32_t sum,
                           bool past_caches) {
  constexpr std::size_t kBlock = std::size_t{16} << 10;
  while (!from.empty()) {
    const auto block = from.first(std::min(from.size(), kBlock));
    sum = crc32c_of(block, sum);
    if (past_caches) {
      copy_past_caches(to, block.data(), block.size());
    } else {
      std::memcpy(to, block.data(), block.size());
    }
    to += block.size();
    from = from.subspan(block.size());
  }
  return sum;
}

std::span<const std::byte> bytes_in(const grpc::Slice& slice) {
  return std::as_bytes(std::span(slice.begin(), slice.size()));
}

std::uint32_t begin_of_sum(const Digest256& key, std::uint64_t count) {
  ByteWriter number;
  number.number(count);
  return crc32c_of(number.bytes(), crc32c_of(key));
}

/// Keeps the owner of the bytes until gRPC has sent them.
grpc::Slice slice_of(std::span<const std::byte> bytes, const std::shared_ptr<const void>& owner) {
  if (bytes.size() < kWorthKeeping) return {bytes.data(), bytes.size()};
  using Owner = std::shared_ptr<const void>;
  auto keeps = std::make_unique<Owner>(owner);
  void* const data = const_cast<std::byte*>(bytes.data());  // which gRPC only reads
  return {data, bytes.size(),
          [](void* kept) {
            const std::unique_ptr<Owner> ends(static_cast<Owner*>(kept));
            OwnersEndLater::end(std::move(*ends));
          },
          keeps.release()};
}

grpc::Slice envelope_slice(const rpc::Envelope& envelope, std::uint32_t begin) {
  const std::string body = envelope.SerializeAsString();
  ByteWriter writer;
  writer.number(static_cast<std::uint32_t>(body.size()));
  writer.number(crc32c_of(std::as_bytes(std::span(body)), begin));
  writer.raw(std::as_bytes(std::span(body)));
  return {writer.bytes().data(), writer.bytes().size()};
}

/// Reads a message's envelope; what lies behind it is left in `slices`.
rpc::Envelope open(const grpc::ByteBuffer& message, std::vector<grpc::Slice>& slices,
                   std::uint32_t begin) {
  if (!message.Dump(&slices).ok()) fail(ErrorCode::kDataLoss, "rpc: a message without bytes");
  std::vector<std::byte> front;
  std::size_t wanted = kPrefixBytes, slice = 0, offset = 0;
  std::uint32_t sum = 0;
  const auto read_front = [&] {
    while (front.size() < wanted && slice < slices.size()) {
      const auto bytes = bytes_in(slices[slice]).subspan(offset);
      const std::size_t n = std::min(bytes.size(), wanted - front.size());
      front.insert(front.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n));
      offset += n;
      if (n == bytes.size()) ++slice, offset = 0;
    }
    if (front.size() < wanted) fail(ErrorCode::kDataLoss, "rpc: a message that is too short");
  };
  read_front();
  ByteReader reader(front);
  wanted += reader.number<std::uint32_t>();
  sum = reader.number<std::uint32_t>();
  if (wanted > static_cast<std::size_t>(kLongestGrpcMessage)) {
    fail(ErrorCode::kDataLoss, "rpc: an envelope of ", wanted, " bytes");
  }
  read_front();
  const auto body = std::span<const std::byte>(front).subspan(kPrefixBytes);
  if (crc32c_of(body, begin) != sum) {
    fail(ErrorCode::kDataLoss, "rpc: an envelope was damaged on its way, or is not the next one");
  }
  google::protobuf::io::CodedInputStream stream(reinterpret_cast<const std::uint8_t*>(body.data()),
                                                static_cast<int>(body.size()));
  stream.SetRecursionLimit(4);
  rpc::Envelope envelope;
  if (!envelope.ParseFromCodedStream(&stream) || !stream.ConsumedEntireMessage()) {
    fail(ErrorCode::kDataLoss, "rpc: expected an envelope, got bytes that are none");
  }
  slices.erase(slices.begin(), slices.begin() + static_cast<std::ptrdiff_t>(slice));
  if (offset > 0) slices.front() = slices.front().sub(offset, slices.front().size());
  return envelope;
}

[[noreturn]] void fail_damaged() {
  fail(ErrorCode::kDataLoss, "rpc: a piece of a payload was damaged on its way");
}

void put(const RpcFrame& frame, std::size_t payload_bytes, rpc::Frame& out) {
  out.set_kind(static_cast<std::uint32_t>(frame.kind));
  out.set_code(static_cast<std::uint32_t>(frame.code));
  out.set_call(frame.call);
  out.mutable_numbers()->Add(frame.numbers.begin(), frame.numbers.end());
  out.set_head(frame.packet.head.data(), frame.packet.head.size());
  out.set_payload_bytes(payload_bytes);
}

}  // namespace

namespace {
thread_local OwnersEndLater* current_owners = nullptr;
}  // namespace

OwnersEndLater::OwnersEndLater() : outer_(std::exchange(current_owners, this)) {}
OwnersEndLater::~OwnersEndLater() {
  current_owners = outer_;  // what ends now may come back here
}
void OwnersEndLater::end(std::shared_ptr<const void> owner) {
  if (current_owners) current_owners->owners_.push_back(std::move(owner));
}

grpc::ByteBuffer handshake_message(std::span<const std::byte> bytes) {
  rpc::Envelope envelope;
  envelope.set_handshake(bytes.data(), bytes.size());
  const grpc::Slice slice = envelope_slice(envelope, 0);
  return {&slice, 1};
}

std::optional<std::vector<std::byte>> handshake_of(const grpc::ByteBuffer& message) {
  constexpr std::size_t kLongest = 8192;
  try {
    std::vector<grpc::Slice> slices;
    if (message.Length() > kLongest) return std::nullopt;
    const rpc::Envelope envelope = open(message, slices, 0);
    if (envelope.has_frame() || envelope.piece_bytes() != 0) return std::nullopt;
    return tutti::internal::bytes_of(envelope.handshake());
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// Of one piece, as it lies.
SharedBytes GrpcFrameWriter::next_piece(Outgoing& out, std::size_t room, std::uint32_t& sum) {
  const SharedBytes& piece = out.frame.packet.payload[out.piece];
  const auto left = piece.bytes.subspan(out.offset);
  const auto bytes = left.first(std::min(left.size(), room));
  sum = crc32c_of(bytes, sum);
  out.offset += bytes.size();
  if (bytes.size() == left.size()) ++out.piece, out.offset = 0;
  return {bytes, piece.owner};
}

/// Bytes of short pieces in a row; 0: there are not two of them.
std::size_t GrpcFrameWriter::small_run(const Outgoing& out, std::size_t room) {
  const auto& pieces = out.frame.packet.payload;
  std::size_t bytes = 0, piece = out.piece, offset = out.offset;
  for (; piece < pieces.size() && bytes < room; ++piece, offset = 0) {
    const std::size_t left = pieces[piece].bytes.size() - offset;
    if (left >= kWorthSlice) break;
    bytes += left;
  }
  return piece - out.piece > 1 ? std::min(bytes, room) : 0;
}

SharedBytes GrpcFrameWriter::gathered(Outgoing& out, std::size_t count, std::uint32_t& sum) {
  const PayloadMemory memory(count);
  for (std::size_t done = 0; done < count;) {
    const auto left = out.frame.packet.payload[out.piece].bytes.subspan(out.offset);
    const auto bytes = left.first(std::min(left.size(), count - done));
    sum = copy_and_sum(bytes, memory.bytes().data() + done, sum, false);
    done += bytes.size();
    out.offset += bytes.size();
    if (bytes.size() == left.size()) ++out.piece, out.offset = 0;
  }
  return memory.shared();
}

grpc::ByteBuffer GrpcFrameWriter::next(std::vector<RpcFrame>& sent) {
  Outgoing& out = frames_.front();
  const auto& pieces = out.frame.packet.payload;
  rpc::Envelope envelope;
  if (!std::exchange(out.has_begun, true)) {
    put(out.frame, out.frame.packet.payload_bytes(), *envelope.mutable_frame());
  }
  std::vector<grpc::Slice> slices(1);
  std::size_t room = kPieceBytes;  // what the second cache holds from one pass to the next
  std::uint32_t sum = 0;
  while (out.piece < pieces.size() && room > 0) {
    const std::size_t small = small_run(out, room);
    const SharedBytes bytes = small > 0 ? gathered(out, small, sum) : next_piece(out, room, sum);
    if (!bytes.bytes.empty()) slices.push_back(slice_of(bytes.bytes, bytes.owner));
    room -= bytes.bytes.size();
  }
  envelope.set_piece_bytes(static_cast<std::uint32_t>(kPieceBytes - room));
  envelope.set_piece_sum(sum);
  slices.front() = envelope_slice(envelope, begin_of_sum(key_, count_++));
  if (out.piece == pieces.size()) {
    sent.push_back(std::move(out.frame));
    frames_.pop_front();
  }
  return {slices.data(), slices.size()};
}

void GrpcFrameReader::take(const grpc::ByteBuffer& message) {
  std::vector<grpc::Slice> slices;
  const rpc::Envelope envelope = open(message, slices, begin_of_sum(key_, count_++));
  std::size_t bytes = 0;
  for (const grpc::Slice& slice : slices) bytes += slice.size();
  if (bytes != envelope.piece_bytes()) fail_damaged();
  if (envelope.has_frame() == frame_.has_value() || !envelope.handshake().empty()) {
    fail(ErrorCode::kDataLoss, "rpc: a frame that begins, or goes on, at the wrong place");
  }
  if (envelope.has_frame()) {
    const rpc::Frame& in = envelope.frame();
    payload_bytes_ = in.payload_bytes();
    head_bytes_ = in.head().size();
    received_ = 0;
    is_leased_ = false;
    waiting_.clear();
    RpcFrame frame;
    frame.kind = static_cast<RpcFrame::Kind>(std::min(in.kind(), 255u));
    frame.code = static_cast<ErrorCode>(std::min(in.code(), 65535u));
    frame.call = in.call();
    check_announced(frame.kind, frame.code,
                    {head_bytes_, static_cast<std::size_t>(in.numbers_size()), payload_bytes_},
                    longest_payload_);
    frame.numbers.assign(in.numbers().begin(), in.numbers().end());
    frame.packet.head = tutti::internal::bytes_of(in.head());
    frame_ = std::move(frame);
  }
  if (bytes > payload_bytes_ - received_) {
    fail(ErrorCode::kDataLoss, "rpc: more bytes of a payload than were announced");
  }
  if (bytes == 0 && received_ < payload_bytes_) {
    fail(ErrorCode::kDataLoss, "rpc: a piece of a payload without bytes");
  }
  received_ += bytes;
  sum_ = envelope.piece_sum();
  if (is_leased_) {
    copy(slices);
  } else {
    waiting_ = std::move(slices);
  }
}

/// As they lie, after comparing the checksum.
std::vector<SharedBytes> GrpcFrameReader::pieces_of(std::vector<grpc::Slice> slices) const {
  std::uint32_t sum = 0;
  for (const grpc::Slice& slice : slices) sum = crc32c_of(bytes_in(slice), sum);
  if (sum != sum_) fail_damaged();
  const auto owner = std::make_shared<const std::vector<grpc::Slice>>(std::move(slices));
  std::vector<SharedBytes> pieces;
  for (const grpc::Slice& slice : *owner) pieces.push_back({bytes_in(slice), owner});
  return pieces;
}

/// And compares the checksum.
void GrpcFrameReader::copy(const std::vector<grpc::Slice>& slices) {
  const bool past_caches = payload_bytes_ >= kPastCaches;
  std::uint32_t sum = 0;
  for (const grpc::Slice& slice : slices) {
    sum = copy_and_sum(bytes_in(slice), payload_.bytes().data() + copied_, sum, past_caches);
    copied_ += slice.size();
  }
  if (past_caches) finish_copies();
  if (sum != sum_) fail_damaged();
}

std::optional<RpcFrame> GrpcFrameReader::next(const Lease& lease) {
  waits_ = false;
  if (!frame_) return std::nullopt;
  if (!is_leased_ && lease && frame_->kind == RpcFrame::Kind::kRequest) {
    frame_->lease = lease(head_bytes_ + payload_bytes_);
    waits_ = frame_->lease == nullptr;
    if (waits_) return std::nullopt;
  }
  const bool came_at_once = !is_leased_ && received_ == payload_bytes_;
  if (came_at_once && frame_->kind == RpcFrame::Kind::kReply && payload_bytes_ >= kWorthSlice) {
    frame_->packet.payload = pieces_of(std::exchange(waiting_, {}));
    return std::exchange(frame_, std::nullopt);
  }
  if (!std::exchange(is_leased_, true)) {
    payload_ = PayloadMemory(payload_bytes_);
    copied_ = 0;
    copy(std::exchange(waiting_, {}));
  }
  if (received_ < payload_bytes_) return std::nullopt;
  if (payload_bytes_ > 0) frame_->packet.payload = {std::exchange(payload_, {}).shared()};
  return std::exchange(frame_, std::nullopt);
}

}  // namespace tutti::internal
