// What travels between two ranks in one MPI message.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>

namespace tutti::internal {

/// A header and bytes, in memory of its own. The processes of an MPI job are of one build.
class MpiFrame {
 public:
  enum class Kind : std::uint16_t {
    kHello,    // the rank is there
    kMessage,  // a short message: head and body
    kOffer,    // the head of a long one; its body waits for kAccept
    kAccept,   // of an offer: send the body
    kRefuse,   // of an offer: nobody wants the body (any more)
    kChunk,    // the next part of an accepted body
    kCancel,   // an offer is taken back
    kAbort,    // the group is ended; the text says why
    kGoodbye,  // the rank is gone
  };
  struct Header {
    Kind kind = Kind::kHello;
    std::uint16_t head_bytes = 0;
    std::int32_t from = 0;  // ranks of the channel
    std::int32_t to = 0;
    std::uint64_t channel = 0;
    std::uint64_t tag = 0;
    std::uint64_t body_bytes = 0;  // of the whole body, of which a frame may hold a part or none
    std::uint64_t id = 0;          // of an offer, among all that `from` has made
  };

  /// An empty one, to be received into.
  explicit MpiFrame(std::size_t size)
      : size_(size), bytes_(std::make_unique_for_overwrite<std::byte[]>(size)) {}
  MpiFrame(const Header& header, std::span<const std::byte> head, std::span<const std::byte> body)
      : MpiFrame(sizeof(Header) + head.size() + body.size()) {
    std::memcpy(bytes_.get(), &header, sizeof(Header));
    if (!head.empty()) std::memcpy(bytes_.get() + sizeof(Header), head.data(), head.size());
    if (!body.empty()) {
      std::memcpy(bytes_.get() + sizeof(Header) + head.size(), body.data(), body.size());
    }
  }

  std::byte* data() { return bytes_.get(); }
  std::size_t size() const { return size_; }
  /// Whether the size fits the header.
  bool is_whole() const {
    return size_ >= sizeof(Header) && size_ >= sizeof(Header) + header().head_bytes;
  }
  Header header() const {
    Header header;
    std::memcpy(&header, bytes_.get(), sizeof(Header));
    return header;
  }
  std::span<const std::byte> head() const {
    return {bytes_.get() + sizeof(Header), header().head_bytes};
  }
  std::span<const std::byte> body() const {
    const std::size_t before = sizeof(Header) + header().head_bytes;
    return {bytes_.get() + before, size_ - before};
  }
  /// For bytes that MPI may read as long as the process lives.
  void leave_to_the_system() { (void)bytes_.release(); }

 private:
  std::size_t size_;
  std::unique_ptr<std::byte[]> bytes_;
};

}  // namespace tutti::internal
