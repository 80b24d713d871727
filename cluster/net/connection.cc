// Implements Connection: socket, writing and reading of frames, and failures.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/net/connection.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "cluster/net/socket.h"
#include "core/hash.h"
#include "tutti/cluster/net/job_durations.h"
#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

constexpr Duration kSilence = durations::kLinkSilence;

std::optional<tcp_info> info_of(const FileDescriptor& socket) {
  tcp_info info{};
  socklen_t length = sizeof(info);
  if (::getsockopt(socket.get(), IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return std::nullopt;
  return info;
}

}  // namespace

Connection::Connection(FileDescriptor socket, std::string peer, bool is_local, KeptBytes& kept)
    : socket_(std::move(socket)),
      peer_(std::move(peer)),
      is_local_(is_local),
      process_(is_local_ ? watch_process(peer_process(socket_).pid) : FileDescriptor()),
      kept_(kept),
      checked_at_(Clock::system().now()),
      stuck_since_(checked_at_) {
  if (!is_local_) enable_keep_alive(socket_);
}

Connection::IoResult Connection::move() {
  IoResult result;
  MutexLock lock(mutex_);
  result.moved = flush_locked();
  if (!failure_) read(result);
  return result;
}

/// Returns the number of bytes read; 0 if none are available. Throws if the peer has closed the
/// connection and all bytes that it sent have been read.
std::size_t Connection::read_socket(std::span<const iovec> places) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(places.data());  // not modified
  message.msg_iovlen = places.size();
  const ssize_t count = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT);
  if (count > 0) return static_cast<std::size_t>(count);
  if (count < 0 && is_only_later(errno)) return 0;
  const std::string reason =
      is_silent_ && is_local_ ? "its process has exited"
      : is_silent_
          ? concat("it acknowledged no sent data for ", kSilence / std::chrono::seconds(1), " s")
      : count == 0 ? "it closed the connection"
                   : concat("the connection broke (", std::strerror(errno), ")");
  tutti::fail(ErrorCode::kUnavailable, peer_, " disconnected: ", reason);
}

pollfd Connection::watched() const {
  return {socket_.get(), static_cast<short>(has_bytes() ? POLLIN | POLLOUT : POLLIN), 0};
}

/// Detects a peer that is silent or has exited. TCP_USER_TIMEOUT is unsuitable, because it also
/// ends a connection to a live peer that reads nothing during the timeout.
void Connection::check_silence(TimePoint now) {
  if (is_local_) {
    pollfd end{process_.get(), POLLIN, 0};
    is_silent_ = poll_until(std::span(&end, 1), TimePoint::min()) > 0;
  } else if (const auto info = info_of(socket_)) {
    const bool waits = info->tcpi_unacked > 0 && info->tcpi_bytes_acked == acked_;
    acked_ = info->tcpi_bytes_acked;
    // Periods without a waiting thread do not count.
    if (!waits || now - checked_at_ > kSilence / 2) stuck_since_ = now;
    checked_at_ = now;
    is_silent_ = now - stuck_since_ >= kSilence;
  }
  if (is_silent_) reset();
}

bool Connection::has_unsent() const {
  constexpr int kClosed = 7;  // TCP_CLOSE: after a reset, no more bytes are delivered
  const auto info = info_of(socket_);
  int left = 0;
  return info && info->tcpi_state != kClosed && ::ioctl(socket_.get(), SIOCOUTQ, &left) == 0 &&
         left > 0;
}

void Connection::fail(const Error& reason) {
  MutexLock lock(mutex_);
  fail_locked(reason);
}

void Connection::fail_locked(const Error& reason) {
  is_open_ = false;
  const bool is_abort = reason.code() == ErrorCode::kAborted;
  if (!failure_ || (is_abort && failure_->code() != ErrorCode::kAborted)) failure_ = reason;
  if (reading_) {  // the message being read will never be complete
    std::erase(messages_kept_, reading_);
    if (reading_->receiver) reading_->receiver->end(failure_);
    release_body(*reading_);
    reading_ = nullptr;
  }
  if (is_abort) {
    for (const auto& message : messages_kept_) release_body(*message);
    messages_kept_.clear();
  }
  for (const auto& receiver : receivers_) receiver->end(failure_);
  receivers_.clear();
  for (const auto& message : queue_) {
    if (!message->has_ended()) message->end(failure_);
  }
  queue_.clear();
  has_bytes_ = false;
}

void Connection::abort(const Error& reason) {
  MutexLock lock(mutex_);
  const bool tells_the_peer = is_open_;
  std::shared_ptr<Outgoing> begun;
  if (!queue_.empty() && queue_.front()->written > 0) begun = queue_.front();
  if (begun) begun->own_body();
  fail_locked(reason);
  if (!tells_the_peer) return;
  const std::string_view text = std::string_view(reason.message()).substr(0, kLongestAbortText);
  const FrameHeader header{FrameHeader::Kind::kAbort, 0, 0, text.size()};
  const auto last = std::make_shared<Outgoing>(header, std::span<const std::byte>(),
                                               std::as_bytes(std::span(text)));
  last->own_body();
  if (begun) queue_.push_back(begun);
  queue(last);
  flush_locked();
}

void Connection::close() noexcept { ::shutdown(socket_.get(), SHUT_RDWR); }

/// Resets the connection instead of closing it: the peer would receive an end-of-file only after
/// the undelivered bytes, which may never arrive.
void Connection::reset() noexcept {
  sockaddr nowhere{};
  nowhere.sa_family = AF_UNSPEC;
  if (::connect(socket_.get(), &nowhere, sizeof(nowhere)) != 0) close();
}

namespace {

// Writing frames: header, head and body are written in one system call. A frame's header consists
// of numbers at fixed offsets; every field is validated when read.

// Maximum number of bytes per write. Only the checksum of these bytes is computed before the write,
// so that sending overlaps with computing the next checksum.
constexpr std::size_t kCheckedAtOnce = std::size_t{256} << 10;

constexpr std::uint32_t kFrameMagic = 0x46747554;  // "TutF"
static_assert(std::endian::native == std::endian::little, "frames are copies of numbers");
struct [[gnu::packed]] FrameOnTheWire {
  std::uint32_t magic = kFrameMagic;
  FrameHeader::Kind kind = FrameHeader::Kind::kMessage;
  std::uint8_t reserved = 0;
  std::uint16_t head_bytes = 0;
  std::uint64_t tag = 0;
  std::uint64_t body_bytes = 0;
  std::uint32_t crc = 0;  // checksum of all preceding bytes

  std::uint32_t expected_crc() const {
    return crc32c_of(std::as_bytes(std::span(this, 1)).first(sizeof(*this) - sizeof(crc)));
  }
};
static_assert(sizeof(FrameOnTheWire) == kFrameHeaderBytes);

template <class... Parts>
[[noreturn]] void refuse_frame(const Parts&... parts) {
  fail(ErrorCode::kUnavailable,
       "the header of a message is damaged or belongs to another protocol: ", parts...);
}

}  // namespace

std::array<std::byte, kFrameHeaderBytes> encode(const FrameHeader& header) {
  FrameOnTheWire wire{.kind = header.kind,
                      .head_bytes = header.head_bytes,
                      .tag = header.tag,
                      .body_bytes = header.body_bytes};
  wire.crc = wire.expected_crc();
  return std::bit_cast<std::array<std::byte, kFrameHeaderBytes>>(wire);
}

FrameHeader decode_frame_header(std::span<const std::byte, kFrameHeaderBytes> bytes) {
  FrameOnTheWire wire;
  std::memcpy(static_cast<void*>(&wire), bytes.data(), sizeof(wire));
  if (wire.magic != kFrameMagic) {
    refuse_frame("expected the magic ", kFrameMagic, ", got ", +wire.magic);
  }
  if (wire.crc != wire.expected_crc()) {
    refuse_frame("expected the checksum ", wire.expected_crc(), ", got ", +wire.crc);
  }
  const FrameHeader header{wire.kind, wire.head_bytes, wire.tag, wire.body_bytes};
  const bool is_abort = header.kind == FrameHeader::Kind::kAbort;
  if ((header.kind != FrameHeader::Kind::kMessage && !is_abort) || wire.reserved != 0) {
    refuse_frame("expected kind 1 or 2 and reserved 0, got ", static_cast<int>(header.kind),
                 " and ", +wire.reserved);
  }
  const std::size_t longest_head = is_abort ? 0 : kLongestHead;
  const std::uint64_t longest_body = is_abort ? kLongestAbortText : kLongestBody;
  if (header.head_bytes > longest_head || header.body_bytes > longest_body) {
    refuse_frame("expected head and body of at most ", longest_head, " and ", longest_body,
                 " bytes, got ", header.head_bytes, " and ", header.body_bytes);
  }
  return header;
}

Outgoing::Outgoing(const FrameHeader& header, std::span<const std::byte> head,
                   std::span<const std::byte> body)
    : body(body) {
  tag = header.tag;
  body_bytes = body.size();
  is_counted = header.kind == FrameHeader::Kind::kMessage;
  const auto encoded = encode(header);
  std::memcpy(front.data(), encoded.data(), encoded.size());
  if (!head.empty()) std::memcpy(front.data() + encoded.size(), head.data(), head.size());
  front_bytes = encoded.size() + head.size();
}

void Outgoing::own_body() {
  if (std::exchange(is_owned, true)) return;
  const std::size_t gone = std::min(written - std::min(written, front_bytes), body.size());
  owned.assign(body.begin() + static_cast<std::ptrdiff_t>(gone), body.end());
  body = owned;
  // The body now consists of the unwritten bytes.
  written -= gone;
  num_checked -= std::min(num_checked, gone);
}

std::size_t Connection::num_bytes(const Outgoing& message) const {
  return message.front_bytes + message.body.size() + (is_local_ ? 0 : kFrameChecksumBytes);
}

/// Writes as many of the remaining bytes as one call accepts; over TCP, at most kCheckedAtOnce of
/// the body. Returns true if bytes were written. Updates the checksum first, because the checksum
/// and the last bytes are sent in one call.
bool Connection::write_rest(Outgoing& message) {
  std::array<iovec, 3> parts{};
  msghdr call{};
  call.msg_iov = parts.data();
  std::size_t skip = message.written;
  const auto add = [&](std::span<const std::byte> bytes) {
    const std::size_t skipped = std::min(skip, bytes.size());
    skip -= skipped;
    if (skipped == bytes.size()) return;
    // The system does not modify the bytes, but iovec has no const pointer.
    parts[call.msg_iovlen++] = {const_cast<std::byte*>(bytes.data()) + skipped,
                                bytes.size() - skipped};
  };
  add(std::span(message.front).first(message.front_bytes));
  std::size_t end = message.body.size();
  if (!is_local_) {
    end = std::min(end, skip + kCheckedAtOnce);
    if (end > message.num_checked) {
      const auto next = message.body.subspan(message.num_checked, end - message.num_checked);
      message.crc = crc32c_of(next, message.crc);
      message.num_checked = end;
    }
  }
  add(message.body.first(end));
  if (!is_local_ && end == message.body.size()) {
    add(std::as_bytes(std::span(&message.crc, 1)));
  }
  const ssize_t count = ::sendmsg(socket_.get(), &call, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (count > 0) message.written += static_cast<std::size_t>(count);
  is_broken_ = count < 0 && !is_only_later(errno);
  return count > 0;
}

void Connection::queue(const std::shared_ptr<Outgoing>& message) {
  if (!is_local_) {
    message->crc =
        crc32c_of(std::span(message->front).first(message->front_bytes).subspan(kFrameHeaderBytes));
  }
  queue_.push_back(message);
}

bool Connection::send(const std::shared_ptr<Outgoing>& message) {
  MutexLock lock(mutex_);
  if (failure_) {
    message->end(failure_);
    return true;
  }
  const bool was_alone = queue_.empty();
  queue(message);
  flush_locked();
  return was_alone && queue_.empty();
}

bool Connection::flush() {
  MutexLock lock(mutex_);
  return flush_locked();
}

// A write error does not end operations here. The reader detects the error, too: it first reads the
// peer's last messages (such as the reason for an abort), and then fails both directions.
bool Connection::flush_locked() {
  bool wrote = false;
  while (!queue_.empty() && !is_broken_) {
    Outgoing& message = *queue_.front();
    if (!write_rest(message)) break;
    wrote = true;
    if (message.written < num_bytes(message)) continue;
    if (message.is_counted) {
      messages_.fetch_add(1);
      bytes_.fetch_add(message.front_bytes - kFrameHeaderBytes + message.body_bytes);
    }
    if (!message.has_ended()) message.end();  // a cancelled message is still sent in full
    queue_.pop_front();
  }
  has_bytes_ = !queue_.empty() && !is_broken_;
  return wrote;
}

void Connection::cancel(const std::shared_ptr<Outgoing>& message) {
  MutexLock lock(mutex_);
  const auto found = std::ranges::find(queue_, message);
  if (found == queue_.end()) return;
  if (message->written > 0) {
    message->own_body();
  } else {
    queue_.erase(found);
  }
  has_bytes_ = !queue_.empty() && !is_broken_;
}

namespace {

// Reading frames, and finding the receiver of each message. A body whose header was read is stored
// in its *target*: the receiver's memory, or the connection's if there is no receiver yet. All
// other bytes are *staged*; headers, heads and small bodies are parsed from there. One system call
// fills both the target and the staging memory, so many small messages cost one call, and a large
// body is not copied.

// Limit on the bytes read per move(), so that other connections are served, too.
constexpr std::size_t kReadAtOnce = std::size_t{4} << 20;
// Size of the buffer for message bodies that are dropped.
constexpr std::size_t kDroppedAtOnce = std::size_t{64} << 10;

std::span<std::byte> dropped_bytes() {
  thread_local std::vector<std::byte> bytes(kDroppedAtOnce);
  return bytes;
}

}  // namespace

void Connection::read(IoResult& result) {
  for (std::size_t total = 0; total < kReadAtOnce;) {
    std::size_t wanted = 0, count = 0;
    try {
      count = read_bytes(wanted);
    } catch (const Error& error) {
      const bool is_within = reading_ || num_staged_ > 0;
      result.failure =
          Error(error.code(), error.message() + (is_within ? " within a message" : ""));
      return;
    }
    if (count == 0) return;
    result.moved = true;
    total += count;
    try {
      consume_staged(result);
    } catch (const Error& error) {
      result.failure = Error(error.code(), concat(peer_, ": ", error.message()));
      return;
    }
    if (result.abort || count < wanted) return;
  }
}

/// Performs one read, and updates num_staged_ and reading_->arrived. `wanted` receives the number
/// of bytes for which there was room.
std::size_t Connection::read_bytes(std::size_t& wanted) {
  std::array<iovec, 2> places{};
  std::size_t num_places = 0;
  std::span<std::byte> body;
  if (reading_) {
    const std::size_t left = reading_->header.body_bytes - reading_->arrived;
    body = reading_->target
               ? std::span(reading_->target + reading_->arrived, std::min(left, kReadAtOnce))
               : dropped_bytes().first(std::min(left, kDroppedAtOnce));
    places[num_places++] = {body.data(), body.size()};
  }
  const bool reaches_end =
      !reading_ || reading_->arrived + body.size() == reading_->header.body_bytes;
  const std::size_t room = reaches_end ? kStagedBytes - num_staged_ : 0;
  if (room > 0) places[num_places++] = {staged_.data() + num_staged_, room};
  wanted = body.size() + room;
  const std::size_t count = read_socket(std::span(places).first(num_places));
  const std::size_t to_body = std::min(count, body.size());
  if (reading_) {
    reading_->arrived += to_body;
    if (!is_local_) reading_->crc = crc32c_of(body.first(to_body), reading_->crc);
  }
  num_staged_ += count - to_body;
  return count;
}

void Connection::consume_staged(IoResult& result) {
  std::size_t at = 0;
  for (;;) {
    const std::size_t left = num_staged_ - at;
    if (reading_) {
      const std::size_t behind = is_local_ ? 0 : kFrameChecksumBytes;
      if (!reading_->has_body() || left < behind) break;
      if (!is_local_) check_message(at);
      at += behind;
      finish_message(result);
      continue;
    }
    const std::size_t front = take_front(at);
    if (front == 0) break;
    at += front;
    const std::size_t body = std::min<std::size_t>(reading_->header.body_bytes, num_staged_ - at);
    if (reading_->target && body > 0) std::memcpy(reading_->target, &staged_[at], body);
    if (!is_local_) {
      reading_->crc = crc32c_of(std::as_bytes(std::span(staged_)).subspan(at, body), reading_->crc);
    }
    reading_->arrived = body;
    at += body;
  }
  num_staged_ -= at;
  if (at > 0 && num_staged_ > 0) std::memmove(staged_.data(), staged_.data() + at, num_staged_);
}

/// Begins the message whose header and head are staged at `at`. Returns their length, or 0 if they
/// are incomplete.
std::size_t Connection::take_front(std::size_t at) {
  const auto bytes = std::span<const std::byte>(staged_).subspan(at, num_staged_ - at);
  if (bytes.size() < kFrameHeaderBytes) return 0;
  const FrameHeader header = decode_frame_header(bytes.first<kFrameHeaderBytes>());
  const std::size_t front = kFrameHeaderBytes + header.head_bytes;
  if (bytes.size() < front) return 0;
  begin_message(header, bytes.data() + kFrameHeaderBytes);
  if (!is_local_) {
    reading_->crc = crc32c_of(bytes.subspan(kFrameHeaderBytes, header.head_bytes));
  }
  return front;
}

void Connection::check_message(std::size_t at) {
  std::uint32_t expected = 0;
  std::memcpy(&expected, &staged_[at], sizeof(expected));
  if (expected == reading_->crc) return;
  tutti::fail(ErrorCode::kUnavailable, "the message with tag ", reading_->header.tag, " (body of ",
              reading_->header.body_bytes, " bytes) is damaged: expected the checksum ", expected,
              ", got ", reading_->crc);
}

void Connection::begin_message(const FrameHeader& header, const std::byte* head) {
  reading_ = std::make_shared<Message>();
  reading_->header = header;
  if (header.head_bytes > 0) std::memcpy(reading_->head.data(), head, header.head_bytes);
  if (header.kind == FrameHeader::Kind::kAbort) {
    keep_body(*reading_);
    return;
  }
  const auto found =
      std::ranges::find(receivers_, header.tag, [](const auto& r) { return r->tag; });
  if (found != receivers_.end()) {
    const std::shared_ptr<Incoming> receiver = *found;
    receivers_.erase(found);
    attach(*reading_, receiver);
    return;
  }
  keep_body(*reading_);
  messages_kept_.push_back(reading_);
}

void Connection::keep_body(Message& message) {
  const std::size_t bytes = message.header.body_bytes;
  if (bytes == 0) return;
  if (kept_.now.fetch_add(bytes) + bytes > kept_.limit) {
    kept_.now.fetch_sub(bytes);
    tutti::fail(ErrorCode::kResourceExhausted, "expected at most ", kept_.limit,
                " bytes of messages waiting for recv(), got another message of ", bytes,
                " bytes with tag ", message.header.tag);
  }
  message.kept =
      BufferRef::allocate(bytes);  // from the allocator's cache, because fresh pages cost more
  message.target = message.kept->data();
}

void Connection::release_body(Message& message) {
  if (!message.kept) return;
  kept_.now.fetch_sub(message.header.body_bytes);
  message.kept = {};
}

void Connection::finish_message(IoResult& result) {
  const std::shared_ptr<Message> message = std::exchange(reading_, nullptr);
  if (message->header.kind == FrameHeader::Kind::kAbort) {
    result.abort = Error(
        ErrorCode::kAborted,
        std::string(reinterpret_cast<const char*>(message->target), message->header.body_bytes));
    release_body(*message);
  } else if (message->receiver) {
    end_receiver(*message);
  }
}

/// Delivers the message to `receiver` from now on; drops the body if its length differs from what
/// the receiver expects.
void Connection::attach(Message& message, const std::shared_ptr<Incoming>& receiver) {
  message.receiver = receiver;
  const std::size_t head = std::min<std::size_t>(message.header.head_bytes, receiver->head.size());
  if (head > 0) std::memcpy(receiver->head.data(), message.head.data(), head);
  const bool fits = message.header.head_bytes == receiver->head.size() &&
                    message.header.body_bytes == receiver->body.size();
  message.target = fits ? receiver->body.data() : nullptr;
  if (fits && message.arrived > 0) {
    std::memcpy(message.target, message.kept->data(), message.arrived);
  }
  release_body(message);
  if (&message != reading_.get()) end_receiver(message);  // the message is complete
}

void Connection::end_receiver(Message& message) {
  const std::shared_ptr<Incoming> receiver = std::exchange(message.receiver, nullptr);
  const FrameHeader& header = message.header;
  if (header.head_bytes == receiver->head.size() && header.body_bytes == receiver->body.size()) {
    receiver->end();
    return;
  }
  receiver->end(Error(ErrorCode::kInvalidArgument,
                      concat(peer_, ": the message with tag ", header.tag,
                             " has the wrong length; expected head and body of ",
                             receiver->head.size(), " and ", receiver->body.size(), " bytes, got ",
                             header.head_bytes, " and ", header.body_bytes)));
}

void Connection::receive(const std::shared_ptr<Incoming>& receiver) {
  MutexLock lock(mutex_);
  const auto found =
      std::ranges::find(messages_kept_, receiver->tag, [](const auto& m) { return m->header.tag; });
  if (found != messages_kept_.end()) {
    const std::shared_ptr<Message> message = *found;
    messages_kept_.erase(found);
    attach(*message, receiver);
    return;
  }
  if (failure_) {
    receiver->end(failure_);
  } else {
    receivers_.push_back(receiver);
  }
}

void Connection::cancel(const std::shared_ptr<Incoming>& receiver) {
  MutexLock lock(mutex_);
  std::erase(receivers_, receiver);
  if (!reading_ || reading_->receiver != receiver) return;
  reading_->receiver = nullptr;
  reading_->target = nullptr;
}

}  // namespace tutti::internal
