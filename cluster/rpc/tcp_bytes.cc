// Writing frames piece by piece, and reading them to where they belong.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/rpc/tcp_bytes.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tutti/cluster/handshake/byte_stream.h"
#include "tutti/core/crc32c.h"

namespace tutti::internal {
namespace {

constexpr std::uint32_t kMagic = 0x31637074;  // "tpc1"
constexpr std::size_t kMostAtOnce = std::size_t{2} << 20;
constexpr std::size_t kMostPlaces = 256;

std::size_t num_pieces(std::size_t payload) { return (payload + kPieceBytes - 1) / kPieceBytes; }

/// What the checksum of a fixed part begins with.
std::uint32_t begin_of_sum(const Digest256& key, std::uint64_t count) {
  ByteWriter number;
  number.number(count);
  return crc32c_of(number.bytes(), crc32c_of(key));
}

}  // namespace

std::span<const std::byte> RpcWriter::Outgoing::bytes_of(std::size_t index) const {
  if (index == 0) return front;
  if (index == 1) return frame.packet.head;
  if (index + 1 == num_parts()) return sums;
  return frame.packet.payload[index - 2].bytes;
}

void RpcWriter::push(RpcFrame frame) {
  Outgoing& out = frames_.emplace_back();
  out.frame = std::move(frame);
  const RpcFrame& f = out.frame;
  out.payload_bytes = f.packet.payload_bytes();
  ByteWriter numbers;
  for (const std::uint64_t number : f.numbers) numbers.number(number);
  ByteWriter fixed;
  fixed.number(kMagic);
  fixed.number(static_cast<std::uint8_t>(f.kind));
  fixed.number(std::uint8_t{0});
  fixed.number(static_cast<std::uint16_t>(f.code));
  fixed.number(f.call);
  fixed.number(static_cast<std::uint32_t>(f.packet.head.size()));
  fixed.number(static_cast<std::uint32_t>(f.numbers.size()));
  fixed.number(std::uint64_t{out.payload_bytes});
  fixed.number(crc32c_of(f.packet.head, crc32c_of(numbers.bytes())));
  fixed.number(crc32c_of(fixed.bytes(), begin_of_sum(key_, count_++)));
  fixed.raw(numbers.bytes());
  out.front = std::move(fixed.bytes());
}

/// Sums what of these bytes has not been summed; they begin at `begin` of the payload.
void RpcWriter::sum(Outgoing& out, std::span<const std::byte> bytes, std::size_t begin) const {
  bytes = bytes.subspan(std::min(bytes.size(), out.payload_summed - begin));
  while (!bytes.empty()) {
    const std::size_t left = kPieceBytes - out.payload_summed % kPieceBytes;
    const std::size_t n = std::min(bytes.size(), left);
    out.sum = crc32c_of(bytes.first(n), out.sum);
    out.payload_summed += n;
    bytes = bytes.subspan(n);
    if (n < left && out.payload_summed < out.payload_bytes) continue;
    ByteWriter number;
    number.number(std::exchange(out.sum, 0));
    out.sums.insert(out.sums.end(), number.bytes().begin(), number.bytes().end());
  }
}

std::span<const iovec> RpcWriter::next() {
  places_.clear();
  std::size_t room = kMostAtOnce;
  for (Outgoing& out : frames_) {
    std::size_t offset = out.offset, done = out.payload_done;
    for (std::size_t part = out.part; part < out.num_parts(); ++part, offset = 0) {
      if (room == 0 || places_.size() == kMostPlaces) return places_;
      auto bytes = out.bytes_of(part).subspan(offset);
      const bool is_payload = part >= 2 && part + 1 < out.num_parts();
      const bool is_cut = bytes.size() > room;
      bytes = bytes.first(std::min(bytes.size(), room));
      if (is_payload) sum(out, bytes, done);
      if (is_payload) done += bytes.size();
      if (!bytes.empty()) {
        places_.push_back({const_cast<std::byte*>(bytes.data()), bytes.size()});  // read only
      }
      room -= bytes.size();
      if (is_cut) return places_;
    }
  }
  return places_;
}

void RpcWriter::wrote(std::size_t count, std::vector<RpcFrame>& sent) {
  while (!frames_.empty()) {
    Outgoing& out = frames_.front();
    while (out.part < out.num_parts()) {
      const std::size_t n = std::min(count, out.bytes_of(out.part).size() - out.offset);
      const bool is_payload = out.part >= 2 && out.part + 1 < out.num_parts();
      if (is_payload) out.payload_done += n;
      out.offset += n;
      count -= n;
      // The sums are not all there before all of the payload has gone.
      if (out.offset < out.bytes_of(out.part).size()) return;
      ++out.part;
      out.offset = 0;
    }
    sent.push_back(std::move(out.frame));
    frames_.pop_front();
  }
}

std::span<std::byte> RpcReader::target() {
  if (stage_ == Stage::kPayload) return payload_.bytes();
  if (stage_ == Stage::kBody || stage_ == Stage::kSums) return body_;
  return {};
}

std::array<std::span<std::byte>, 2> RpcReader::places() {
  if (waits_) return {};
  if (begin_ == end_) begin_ = end_ = 0;
  if (end_ == staging_.size()) {  // a part of a fixed part at the very end
    std::copy(staging_.begin() + static_cast<std::ptrdiff_t>(begin_), staging_.end(),
              staging_.begin());
    end_ -= std::exchange(begin_, 0);
  }
  const auto beyond = std::span(staging_).subspan(end_);
  const auto wanted = target().subspan(std::min(done_, target().size()));
  if (wanted.empty()) return {beyond, {}};
  if (wanted.size() > kPieceBytes) return {wanted.first(kPieceBytes), {}};
  return {wanted, beyond};
}

void RpcReader::filled(std::size_t count) {
  const std::size_t wanted = target().size() - std::min(done_, target().size());
  const std::size_t n = std::min(count, wanted);
  advance(n);
  end_ += count - n;
}

/// So many bytes of the target have come; the payload's are summed while they are warm.
void RpcReader::advance(std::size_t count) {
  if (stage_ == Stage::kPayload) {
    auto bytes = std::span<const std::byte>(payload_.bytes()).subspan(done_, count);
    for (std::size_t at = done_; !bytes.empty();) {
      const std::size_t left = kPieceBytes - at % kPieceBytes;
      const std::size_t n = std::min(bytes.size(), left);
      sum_ = crc32c_of(bytes.first(n), sum_);
      at += n;
      bytes = bytes.subspan(n);
      if (n == left || at == sizes_.payload) sums_.push_back(std::exchange(sum_, 0));
    }
  }
  done_ += count;
}

/// Whether the target is full, after what was read beyond an earlier place.
bool RpcReader::fill_target() {
  const auto rest = target().subspan(done_);
  const std::size_t n = std::min(rest.size(), end_ - begin_);
  if (n > 0) std::memcpy(rest.data(), staging_.data() + begin_, n);
  begin_ += n;
  advance(n);
  return done_ == target().size();
}

void RpcReader::enter(Stage stage) {
  stage_ = stage;
  done_ = 0;
}

std::optional<RpcFrame> RpcReader::next(const Lease& lease) {
  if (is_broken_) fail(ErrorCode::kDataLoss, "rpc: a frame after a damaged one");
  is_broken_ = true;  // unless it goes well
  std::optional<RpcFrame> frame;
  for (bool goes_on = true; goes_on && !frame;) {
    switch (stage_) {
      case Stage::kFixed:
        goes_on = end_ - begin_ >= kRpcFixedBytes;
        if (goes_on) take_fixed();
        break;
      case Stage::kRoom:
        goes_on = take_room(lease);
        break;
      case Stage::kBody:
        goes_on = fill_target();
        if (!goes_on) break;
        take_body();
        if (sizes_.payload == 0) frame = finish();
        break;
      case Stage::kPayload:
        goes_on = fill_target();
        if (!goes_on) break;
        body_.assign(4 * num_pieces(sizes_.payload), std::byte{0});
        enter(Stage::kSums);
        break;
      case Stage::kSums:
        goes_on = fill_target();
        if (!goes_on) break;
        check_sums();
        frame = finish();
        break;
    }
  }
  is_broken_ = false;
  return frame;
}

void RpcReader::take_fixed() {
  const auto bytes = std::span<const std::byte>(staging_).subspan(begin_, kRpcFixedBytes);
  begin_ += kRpcFixedBytes;
  ByteReader reader(bytes);
  const auto magic = reader.number<std::uint32_t>();
  frame_ = {};
  frame_.kind = static_cast<RpcFrame::Kind>(reader.number<std::uint8_t>());
  const auto reserved = reader.number<std::uint8_t>();
  frame_.code = static_cast<ErrorCode>(reader.number<std::uint16_t>());
  frame_.call = reader.number<std::uint64_t>();
  sizes_.head = reader.number<std::uint32_t>();
  sizes_.numbers = reader.number<std::uint32_t>();
  sizes_.payload = reader.number<std::uint64_t>();
  body_sum_ = reader.number<std::uint32_t>();
  const auto sum = reader.number<std::uint32_t>();
  const bool is_whole =
      sum == crc32c_of(bytes.first(kRpcFixedBytes - 4), begin_of_sum(key_, count_));
  if (!is_whole || magic != kMagic || reserved != 0) {
    fail(ErrorCode::kDataLoss, "rpc: the beginning of frame ", count_, " was damaged on its way");
  }
  check_announced(frame_.kind, frame_.code, sizes_, longest_payload_);
  ++count_;
  enter(Stage::kRoom);
}

bool RpcReader::take_room(const Lease& lease) {
  waits_ = false;
  if (frame_.kind == RpcFrame::Kind::kRequest && lease) {
    frame_.lease = lease(sizes_.bytes());
    waits_ = frame_.lease == nullptr;
    if (waits_) return false;
  }
  body_.assign(8 * sizes_.numbers + sizes_.head, std::byte{0});
  enter(Stage::kBody);
  return true;
}

void RpcReader::take_body() {
  if (crc32c_of(body_) != body_sum_) {
    fail(ErrorCode::kDataLoss, "rpc: the head of a frame was damaged on its way");
  }
  ByteReader reader(body_);
  frame_.numbers.reserve(sizes_.numbers);
  for (std::size_t i = 0; i < sizes_.numbers; ++i) {
    frame_.numbers.push_back(reader.number<std::uint64_t>());
  }
  const auto head = reader.raw(sizes_.head);
  if (sizes_.numbers == 0) {
    frame_.packet.head = std::move(body_);
  } else {
    frame_.packet.head.assign(head.begin(), head.end());
  }
  body_.clear();
  sums_.clear();
  if (sizes_.payload > 0) payload_ = PayloadMemory(sizes_.payload);
  enter(Stage::kPayload);
}

void RpcReader::check_sums() {
  ByteReader reader(body_);
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    if (sums_[i] == reader.number<std::uint32_t>()) continue;
    fail(ErrorCode::kDataLoss, "rpc: mebibyte ", i, " of a payload of ", sizes_.payload,
         " bytes was damaged on its way");
  }
  frame_.packet.payload = {payload_.shared()};
  payload_ = {};
}

RpcFrame RpcReader::finish() {
  enter(Stage::kFixed);
  return std::exchange(frame_, {});
}

}  // namespace tutti::internal
