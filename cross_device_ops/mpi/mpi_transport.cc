// Messages over MPI: frames and their dispatch; processes and ranks of a group; offers, replies and
// chunks; cancelling, aborting and closing.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/mpi/mpi_transport.h"

#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/names.h"
#include "cross_device_ops/mpi/mpi_runtime.h"
#include "tutti/core/error.h"
#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/rank_durations.h"
#include "tutti/cross_device_ops/transport.h"

namespace tutti::internal {

using durations::kLastWords;

namespace {

void copy(std::span<const std::byte> from, std::byte* to) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size());
}

}  // namespace

/// Content of one MPI message between two ranks: a header, and bytes that the frame owns. The
/// header is copied as is, because all processes of an MPI job run the same build.
struct MpiFrame {
  enum class Kind : std::uint16_t {
    kHello,    // the rank has connected
    kMessage,  // a short message: head and body
    kOffer,    // head of a long message; kAccept requests its body
    kAccept,   // reply to an offer: send the body
    kRefuse,   // reply to an offer: no receive wants the body
    kChunk,    // the next part of an accepted body
    kCancel,   // withdraws an offer
    kAbort,    // the group has ended; the body is the reason
    kGoodbye,  // the rank has closed its transport
  };
  struct Header {
    Kind kind = Kind::kHello;
    std::uint16_t head_bytes = 0;
    std::int32_t from = 0;  // ranks within the channel
    std::int32_t to = 0;
    std::uint64_t channel = 0;
    std::uint64_t tag = 0;
    std::uint64_t body_bytes = 0;  // size of the whole body, not of the frame
    std::uint64_t id = 0;          // message id, unique within its sender
  };

  /// Creates an uninitialised frame for receiving `num_bytes` bytes.
  explicit MpiFrame(std::size_t num_bytes)
      : size(num_bytes), bytes(std::make_unique_for_overwrite<std::byte[]>(num_bytes)) {}
  MpiFrame(const Header& header, std::span<const std::byte> head, std::span<const std::byte> body)
      : MpiFrame(sizeof(Header) + head.size() + body.size()) {
    copy(std::as_bytes(std::span(&header, 1)), bytes.get());
    copy(head, bytes.get() + sizeof(Header));
    copy(body, bytes.get() + sizeof(Header) + head.size());
  }

  /// Returns true if the frame contains a whole header and head.
  bool is_whole() const {
    return size >= sizeof(Header) && size >= sizeof(Header) + header().head_bytes;
  }
  Header header() const {
    Header header;
    std::memcpy(&header, bytes.get(), sizeof(Header));
    return header;
  }
  std::span<const std::byte> head() const {
    return {bytes.get() + sizeof(Header), header().head_bytes};
  }
  std::span<const std::byte> body() const {
    const std::size_t before = sizeof(Header) + header().head_bytes;
    return {bytes.get() + before, size - before};
  }

  std::size_t size;
  std::unique_ptr<std::byte[]> bytes;
};

/// Sends and receives all frames of this process, and dispatches them to their receivers. One per
/// process. Requires: mutex() held, except for get() and drive(); callbacks also run with it held.
/// Frames from one process arrive in the order in which they were posted.
class MpiDispatcher {
 public:
  /// Rank within a channel (a group of ranks); this process may contain several ranks of a channel.
  struct Address {
    std::uint64_t channel = 0;
    int rank = 0;
    auto operator<=>(const Address&) const = default;
  };
  using Receiver = std::function<void(MpiFrame frame)>;

  static std::shared_ptr<MpiDispatcher> get() {
    MpiRuntime& runtime = MpiRuntime::get();  // created first, to outlive the dispatcher
    static Mutex mutex;
    static std::shared_ptr<MpiDispatcher> dispatcher;
    MutexLock lock(mutex);
    if (!dispatcher) dispatcher = std::make_shared<MpiDispatcher>(runtime);
    return dispatcher;
  }
  explicit MpiDispatcher(MpiRuntime& runtime) : runtime_(runtime) {}
  // Runs at the end of the process. If MPI was not finalised, it may still read the memory of
  // frames, which is therefore never freed.
  ~MpiDispatcher() {
    try {
      if (runtime_.is_usable()) {
        poll_until(deadline_after(Clock::system().now(), kLastWords), [this] {
          return drive([this] { return std::ranges::none_of(transfers_, &Transfer::is_send); });
        });
      }
    } catch (const Error&) {
    }
    for (Transfer& transfer : transfers_) static_cast<void>(transfer.frame.bytes.release());
  }

  Mutex& mutex() { return mutex_; }
  MpiRuntime& runtime() { return runtime_; }
  /// Returns how many times this rank's group has been opened before; the other ranks of the group
  /// get the same number.
  std::uint64_t next_number(const Address& group) { return numbers_[group]++; }
  /// Calls `receiver` for each frame to this address, beginning with frames that have already
  /// arrived.
  void open(const Address& address, const Receiver& receiver) {
    Channel& channel = channels_[address];
    channel.receiver = receiver;
    for (MpiFrame& frame : std::exchange(channel.early, {})) receiver(std::move(frame));
  }
  /// Discards later frames to this address.
  void close(const Address& address) {
    Channel& channel = channels_[address];
    channel = {};
    channel.is_closed = true;
  }
  /// Sends a frame; calls `done` when MPI has sent the bytes.
  void post(int process, MpiFrame frame, std::function<void()> done) {
    runtime_.require_usable();
    Transfer& sent = transfers_.emplace_back(
        Transfer{.frame = std::move(frame), .is_send = true, .done = std::move(done)});
    const MpiRuntime::Calls guard(runtime_);
    check_mpi(MPI_Isend(sent.frame.bytes.get(), static_cast<int>(sent.frame.size), MPI_BYTE,
                        process, kTag, runtime_.comm(), &sent.request),
              "MPI_Isend");
  }
  /// Calls `ended()` with the mutex held; if that returns false, makes progress and calls it again.
  /// Returns the last result.
  bool drive(const std::function<bool()>& ended) {
    MutexLock lock(mutex_);
    if (ended()) return true;
    progress();
    return ended();
  }
  /// Overload for a flag that is set with the mutex held. One thread at a time makes progress; the
  /// other threads return immediately.
  bool drive(const std::atomic<bool>& ended) {
    if (ended || is_driven_.exchange(true)) return ended;
    struct Release {
      std::atomic<bool>& flag;
      ~Release() { flag = false; }
    };
    const Release release{is_driven_};
    return drive([&] { return ended.load(); });
  }

 private:
  /// A frame that MPI is sending or receiving.
  struct Transfer {
    MPI_Request request = MPI_REQUEST_NULL;  // null: ended
    MpiFrame frame;
    bool is_send = false;
    int sender = 0;                   // sending process of a received frame
    std::function<void()> done = {};  // for a sent frame: called when MPI has sent it
  };
  struct Channel {
    Receiver receiver;            // set if open
    std::vector<MpiFrame> early;  // frames that arrived before open()
    bool is_closed = false;
  };
  static constexpr int kTag = 7;
  static constexpr int kFramesAtOnce = 32;
  static constexpr int kRoundsAtOnce = 8;

  void progress() {
    runtime_.require_usable();
    for (int i = 0; i < kRoundsAtOnce; ++i) {
      const bool any_ended = end_transfers();
      if (!find_frames() && !any_ended) break;
    }
  }
  /// Removes the transfers that have ended; returns true if there were any. Tests all of them in
  /// one MPI call, because each such call makes MPI check all its requests.
  bool end_transfers() {
    std::vector<MPI_Request> requests;
    for (const Transfer& transfer : transfers_) requests.push_back(transfer.request);
    if (requests.empty()) return false;
    std::vector<int> indices(requests.size());
    int num_ended = 0;
    {
      const MpiRuntime::Calls guard(runtime_);
      check_mpi(MPI_Testsome(static_cast<int>(requests.size()), requests.data(), &num_ended,
                             indices.data(), MPI_STATUSES_IGNORE),
                "MPI_Testsome");
    }
    if (num_ended == 0) return false;
    auto request = requests.begin();
    for (Transfer& transfer : transfers_) transfer.request = *request++;
    bool any = false;
    std::set<int> held_back;  // senders whose later frames wait for an earlier frame
    std::size_t left = requests.size();
    for (auto transfer = transfers_.begin(); left > 0; --left) {
      const bool is_late = transfer->request != MPI_REQUEST_NULL ||
                           (!transfer->is_send && held_back.contains(transfer->sender));
      if (is_late) {
        if (!transfer->is_send) held_back.insert(transfer->sender);
        ++transfer;
        continue;
      }
      Transfer ended = std::move(*transfer);
      transfer = transfers_.erase(transfer);
      any = true;
      // The callback may append more transfers to the list.
      ended.is_send ? ended.done() : dispatch(std::move(ended.frame));
    }
    return any;
  }
  /// Starts receiving the frames that have arrived; returns true if there were any.
  bool find_frames() {
    const MpiRuntime::Calls guard(runtime_);
    for (int num_found = 0; num_found < kFramesAtOnce; ++num_found) {
      int flag = 0, size = 0;
      MPI_Message message = MPI_MESSAGE_NULL;
      MPI_Status status;
      check_mpi(MPI_Improbe(MPI_ANY_SOURCE, kTag, runtime_.comm(), &flag, &message, &status),
                "MPI_Improbe");
      if (flag == 0) return num_found > 0;
      check_mpi(MPI_Get_count(&status, MPI_BYTE, &size), "MPI_Get_count");
      Transfer& received = transfers_.emplace_back(
          Transfer{.frame = MpiFrame(static_cast<std::size_t>(size)), .sender = status.MPI_SOURCE});
      check_mpi(MPI_Imrecv(received.frame.bytes.get(), size, MPI_BYTE, &message, &received.request),
                "MPI_Imrecv");
    }
    return true;
  }
  void dispatch(MpiFrame frame) {
    if (!frame.is_whole()) {
      fail(ErrorCode::kDataLoss, "mpi: process ", runtime_.rank(), " got a frame of ", frame.size,
           " bytes that tutti did not send; expected all processes to run the same program");
    }
    const MpiFrame::Header header = frame.header();
    Channel& channel = channels_[{header.channel, header.to}];
    const Receiver receiver = channel.receiver;  // a copy, because the call may close the channel
    if (receiver) return receiver(std::move(frame));
    if (!channel.is_closed) channel.early.push_back(std::move(frame));
  }

  MpiRuntime& runtime_;
  Mutex mutex_;
  std::list<Transfer> transfers_;  // in arrival order per sender
  std::map<Address, Channel> channels_;
  std::map<Address, std::uint64_t> numbers_;
  std::atomic<bool> is_driven_{false};
};

namespace {

using Kind = MpiFrame::Kind;

constexpr std::size_t kLongestHead = 256;
constexpr std::size_t kShortBytes = std::size_t{16} << 10;
constexpr std::size_t kChunkBytes = std::size_t{1} << 20;
constexpr int kChunksInFlight = 4;

}  // namespace

/// A transport over MPI. The Work objects that it creates keep it alive, even after close().
class MpiEndpoint final : public Transport, public std::enable_shared_from_this<MpiEndpoint> {
 public:
  MpiEndpoint(std::shared_ptr<MpiDispatcher> dispatcher, std::vector<int> processes, int rank,
              std::uint64_t group)
      : dispatcher_(std::move(dispatcher)), processes_(std::move(processes)), rank_(rank) {
    peers_.resize(processes_.size());
    peer(rank).is_here = true;
    MutexLock lock(dispatcher_->mutex());
    // Each group of these ranks gets a new channel, so that it does not receive frames from their
    // earlier groups.
    address_ = {group + dispatcher_->next_number({group, rank}) * 0x9E3779B97F4A7C15u, rank};
  }
  /// Sends a hello to all other ranks and waits for theirs.
  void connect(Duration timeout) {
    const std::weak_ptr<MpiEndpoint> self = weak_from_this();
    {
      MutexLock lock(dispatcher_->mutex());
      dispatcher_->open(address_, [self](MpiFrame frame) {
        if (const auto endpoint = self.lock()) endpoint->take(std::move(frame));
      });
      for (int r = 0; r < size(); ++r) {
        if (r != rank_) post(r, {.kind = Kind::kHello});
      }
    }
    const auto all_are_here = [this] { return std::ranges::all_of(peers_, &Peer::is_here); };
    const TimePoint deadline = deadline_after(Clock::system().now(), timeout);
    if (poll_until(deadline, [&] { return dispatcher_->drive(all_are_here); })) return;
    std::vector<std::string> missing;
    {
      MutexLock lock(dispatcher_->mutex());
      for (int r = 0; r < size(); ++r) {
        if (!peer(r).is_here) missing.push_back(name_of(r));
      }
    }
    close();
    fail(ErrorCode::kDeadlineExceeded, "mpi: rank ", rank_, ": expected all ", size(),
         " ranks to connect within ", seconds_between(TimePoint(), TimePoint(timeout)),
         " s, but rank ", join(missing), " did not join");
  }
  /// Sends a goodbye to all other ranks.
  void close() noexcept {
    try {
      {
        MutexLock lock(dispatcher_->mutex());
        end_all(Error(ErrorCode::kUnavailable,
                      concat("mpi: rank ", rank_, " has closed its transport")));
        dispatcher_->close(address_);
        if (!dispatcher_->runtime().is_usable()) return;
        post_to_all({.kind = Kind::kGoodbye});
      }
      drain_frames();
    } catch (const Error&) {  // if this fails, the launcher informs the other ranks
    }
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(processes_.size()); }
  std::string_view name() const override { return "mpi"; }
  std::unique_ptr<Work> send(int peer, std::uint64_t tag, std::span<const std::byte> head,
                             std::span<const std::byte> body) override {
    check(peer, head.size());
    auto work = std::make_unique<MpiWork>(shared_from_this(), true, peer, tag);
    work->body = {const_cast<std::byte*>(body.data()), body.size()};
    begin_send(*work, head);
    return work;
  }
  std::unique_ptr<Work> recv(int peer, std::uint64_t tag, std::span<std::byte> head,
                             std::span<std::byte> body) override {
    check(peer, head.size());
    auto work = std::make_unique<MpiWork>(shared_from_this(), false, peer, tag);
    work->head = head;
    work->body = body;
    begin_recv(*work);
    return work;
  }
  void abort(const Error& reason) noexcept override {
    try {
      {
        MutexLock lock(dispatcher_->mutex());
        if (closed_) return;
        abort_locked(Error(ErrorCode::kAborted, reason.message()));
      }
      drain_frames();
    } catch (const Error&) {  // MPI is unusable in this process
    }
  }
  TransportStats stats() const override {
    MutexLock lock(dispatcher_->mutex());
    return stats_;
  }

 private:
  /// A send or receive, guarded by the dispatcher's mutex. After completion, it does not access the
  /// caller's memory.
  struct MpiWork final : Work {
    MpiWork(std::shared_ptr<MpiEndpoint> all, bool sends, int other, std::uint64_t name)
        : endpoint(std::move(all)), is_send(sends), peer(other), tag(name) {}
    ~MpiWork() override { endpoint->cancel(*this); }
    bool test() override {
      if (!endpoint->dispatcher_->drive(ended)) return false;
      if (error) throw *error;
      return true;
    }
    void wait(TimePoint deadline) override {
      if (poll_until(deadline, [this] { return test(); })) return;
      fail(ErrorCode::kDeadlineExceeded, "mpi: ", endpoint->name_of(peer),
           is_send ? " did not receive" : " did not send", " the message with tag ", tag,
           " (body of ", body.size(), " bytes) before the deadline of rank ", endpoint->rank_);
    }
    void end(std::optional<Error> reason = std::nullopt) {
      if (ended) return;
      error = std::move(reason);
      ended = true;  // set last: a thread that sees it may read `error` without the mutex
    }
    bool is_offered() const { return is_send && body.size() > kShortBytes; }

    const std::shared_ptr<MpiEndpoint> endpoint;
    const bool is_send;
    const int peer;
    const std::uint64_t tag;
    std::span<std::byte> head = {};  // where a receive stores the message's head
    std::span<std::byte> body = {};  // read-only for a send
    std::uint64_t id = 0;            // id of a send or of an accepted offer
    std::size_t bytes_moved = 0;     // bytes of the body sent or received so far
    int frames_in_flight = 0;        // frames with parts of the body that MPI is sending
    std::atomic<bool> ended{false};
    std::optional<Error> error;
  };
  /// State of one peer.
  struct Peer {
    bool is_here = false;
    std::optional<Error> gone;
    std::map<std::uint64_t, std::deque<MpiFrame>> arrived;  // messages and offers, keyed by tag
    std::map<std::uint64_t, std::deque<MpiWork*>> waiting;  // receives, keyed by tag
    std::map<std::uint64_t, MpiWork*> receiving;            // accepted offers, keyed by id

    void end_receives(const Error& reason) {
      for (const auto& [tag, list] : waiting) {
        for (MpiWork* const receive : list) receive->end(reason);
      }
      for (const auto& [id, receive] : receiving) receive->end(reason);
      waiting.clear();
      receiving.clear();
    }
    template <class Condition>
    void forget_offers(const Condition& condition) {
      for (auto& [tag, list] : arrived) {
        std::erase_if(list, [&](const MpiFrame& frame) {
          return frame.header().kind == Kind::kOffer && condition(frame.header());
        });
      }
    }
  };

  void check(int peer, std::size_t head_bytes) const {
    require(peer >= 0 && peer < size() && peer != rank_, "mpi: rank ", rank_,
            ": expected a peer from 0 to ", size() - 1, " other than this rank, got ", peer);
    require(head_bytes <= kLongestHead, "mpi: rank ", rank_,
            ": expected a message head of at most ", kLongestHead, " bytes, got ", head_bytes);
  }
  /// Waits for frames in flight, whose delivery may require progress in this process.
  void drain_frames() {
    poll_until(deadline_after(Clock::system().now(), kLastWords),
               [this] { return dispatcher_->drive([this] { return frames_in_flight_ == 0; }); });
  }
  void begin_send(MpiWork& send, std::span<const std::byte> head) {
    MutexLock lock(dispatcher_->mutex());
    const std::optional<Error>& gone = closed_ ? closed_ : peer(send.peer).gone;
    if (gone) return send.end(gone);
    ++stats_.messages_sent;
    stats_.bytes_sent += head.size() + send.body.size();
    send.id = ++last_id_;
    sends_.emplace(send.id, &send);
    MpiFrame::Header header{
        .kind = Kind::kOffer, .tag = send.tag, .body_bytes = send.body.size(), .id = send.id};
    if (send.is_offered()) return post(send.peer, header, head);
    header.kind = Kind::kMessage;
    send.bytes_moved = send.body.size();
    send.frames_in_flight = 1;
    post(send.peer, header, head, send.body, send.id);
  }
  void begin_recv(MpiWork& receive) {
    MutexLock lock(dispatcher_->mutex());
    if (closed_) return receive.end(closed_);
    Peer& from = peer(receive.peer);
    std::deque<MpiWork*>& waiting = from.waiting[receive.tag];
    waiting.push_back(&receive);
    match(from, receive.tag);
    if (!from.gone || waiting.empty() || waiting.back() != &receive) return;
    waiting.pop_back();
    receive.end(from.gone);
  }
  void cancel(MpiWork& work) noexcept {
    MutexLock lock(dispatcher_->mutex());
    if (work.ended) return;
    MpiFrame::Header header{.kind = Kind::kCancel, .id = work.id};
    if (work.is_send) {
      sends_.erase(work.id);
      if (!work.is_offered()) return;
    } else {
      Peer& from = peer(work.peer);
      if (std::erase(from.waiting[work.tag], &work) > 0) return;
      from.receiving.erase(work.id);
      header.kind = Kind::kRefuse;
    }
    try {
      post(work.peer, header);
    } catch (const Error&) {  // MPI is unusable in this process
    }
  }

  // The following functions require the dispatcher's mutex to be held.
  void take(MpiFrame frame) {
    const MpiFrame::Header header = frame.header();
    if (header.from < 0 || header.from >= size()) return;
    Peer& from = peer(header.from);
    // Another rank's hello may arrive after an abort by a rank that is already connected.
    if (closed_ && header.kind != Kind::kHello) return;
    switch (header.kind) {
      case Kind::kHello:
        from.is_here = true;
        return;
      case Kind::kMessage:
      case Kind::kOffer:
        from.arrived[header.tag].push_back(std::move(frame));
        return match(from, header.tag);
      case Kind::kAccept:
      case Kind::kRefuse:
        return take_answer(header);
      case Kind::kChunk:
        return accept_chunk(from, frame);
      case Kind::kCancel:
        return accept_cancel(from, header);
      case Kind::kAbort: {
        const auto text = frame.body();
        return abort_locked(
            Error(ErrorCode::kAborted,
                  std::string(reinterpret_cast<const char*>(text.data()), text.size())));
      }
      case Kind::kGoodbye:
        return accept_goodbye(header.from, from);
    }
  }
  void accept_chunk(Peer& from, const MpiFrame& frame) {
    const auto found = from.receiving.find(frame.header().id);
    if (found == from.receiving.end()) return;  // the receive was cancelled
    MpiWork& receive = *found->second;
    const auto chunk = frame.body();
    TUTTI_CHECK(chunk.size() <= receive.body.size() - receive.bytes_moved,
                "mpi: a chunk is larger than the remaining message");
    copy(chunk, receive.body.data() + receive.bytes_moved);
    receive.bytes_moved += chunk.size();
    if (receive.bytes_moved < receive.body.size()) return;
    from.receiving.erase(found);
    receive.end();
  }
  void take_answer(const MpiFrame::Header& header) {
    const auto found = sends_.find(header.id);
    if (found == sends_.end()) return;  // the offer has since been withdrawn
    if (header.kind == Kind::kAccept) return send_chunks(*found->second);
    found->second->end();
    sends_.erase(found);
  }
  /// Forgets a withdrawn offer. If a receive has accepted it, puts the receive back in the queue,
  /// ahead of later receives.
  void accept_cancel(Peer& from, const MpiFrame::Header& header) {
    const auto found = from.receiving.find(header.id);
    if (found == from.receiving.end()) {
      return from.forget_offers([&](const auto& offer) { return offer.id == header.id; });
    }
    MpiWork* const receive = found->second;
    from.receiving.erase(found);
    from.waiting[receive->tag].push_front(receive);
    match(from, receive->tag);
  }
  void accept_goodbye(int rank, Peer& from) {
    from.gone =
        Error(ErrorCode::kUnavailable, concat("mpi: ", name_of(rank), " has closed its transport"));
    from.forget_offers([](const auto&) { return true; });
    from.end_receives(*from.gone);
    std::erase_if(sends_, [&](const auto& entry) {
      if (entry.second->peer != rank || !entry.second->is_offered()) return false;
      entry.second->end(from.gone);
      return true;
    });
  }
  void match(Peer& from, std::uint64_t tag) {
    auto& arrived = from.arrived[tag];
    auto& waiting = from.waiting[tag];
    while (!arrived.empty() && !waiting.empty()) {
      MpiWork& receive = *waiting.front();
      const MpiFrame frame = std::move(arrived.front());
      waiting.pop_front();
      arrived.pop_front();
      deliver(from, receive, frame);
    }
    if (arrived.empty()) from.arrived.erase(tag);  // saves memory if there are many tags
  }
  void deliver(Peer& from, MpiWork& receive, const MpiFrame& frame) {
    const MpiFrame::Header header = frame.header();
    const bool is_offer = header.kind == Kind::kOffer;
    MpiFrame::Header answer{.kind = Kind::kRefuse, .id = header.id};
    if (receive.head.size() == header.head_bytes) copy(frame.head(), receive.head.data());
    if (receive.head.size() != header.head_bytes || receive.body.size() != header.body_bytes) {
      receive.end(
          Error(ErrorCode::kInvalidArgument,
                concat("mpi: rank ", rank_, ": the message from rank ", header.from, " with tag ",
                       header.tag, " has the wrong length; expected head and body of ",
                       receive.head.size(), " and ", receive.body.size(), " bytes, got ",
                       header.head_bytes, " and ", header.body_bytes)));
      if (is_offer) post(header.from, answer);
      return;
    }
    if (!is_offer) {
      copy(frame.body(), receive.body.data());
      return receive.end();
    }
    receive.id = header.id;
    receive.bytes_moved = 0;
    from.receiving.emplace(header.id, &receive);
    answer.kind = Kind::kAccept;
    post(header.from, answer);
  }
  /// Sends chunks of an accepted offer; ends the send when MPI has sent all frames.
  void send_chunks(MpiWork& send) {
    while (send.frames_in_flight < kChunksInFlight && send.bytes_moved < send.body.size()) {
      const auto chunk = send.body.subspan(
          send.bytes_moved, std::min(kChunkBytes, send.body.size() - send.bytes_moved));
      send.bytes_moved += chunk.size();
      ++send.frames_in_flight;
      post(send.peer, {.kind = Kind::kChunk, .id = send.id}, {}, chunk, send.id);
    }
    if (send.frames_in_flight > 0) return;
    sends_.erase(send.id);
    send.end();
  }
  /// Sends a frame. `send`: id of the send whose body is in the frame; 0 if there is none.
  void post(int peer, MpiFrame::Header header, std::span<const std::byte> head = {},
            std::span<const std::byte> body = {}, std::uint64_t send = 0) {
    header.head_bytes = static_cast<std::uint16_t>(head.size());
    header.from = rank_;
    header.to = peer;
    header.channel = address_.channel;
    ++frames_in_flight_;
    dispatcher_->post(processes_[static_cast<std::size_t>(peer)], MpiFrame(header, head, body),
                      [self = shared_from_this(), send] {
                        --self->frames_in_flight_;
                        const auto found = self->sends_.find(send);
                        if (found == self->sends_.end()) return;
                        --found->second->frames_in_flight;
                        self->send_chunks(*found->second);
                      });
  }
  void post_to_all(const MpiFrame::Header& header, const std::string& text = "") {
    for (int r = 0; r < size(); ++r) {
      if (r != rank_ && !peer(r).gone) post(r, header, {}, std::as_bytes(std::span(text)));
    }
  }
  void end_all(const Error& reason) {
    if (!closed_) closed_ = reason;
    for (const auto& [id, send] : sends_) send->end(closed_);
    sends_.clear();
    for (Peer& other : peers_) {
      other.end_receives(*closed_);
      other.arrived.clear();
    }
  }
  /// Ends all Work objects and sends the reason to all ranks. Every rank forwards an abort, so that
  /// its peers receive the reason before its goodbye.
  void abort_locked(const Error& reason) {
    if (closed_) return;
    end_all(reason);
    post_to_all({.kind = Kind::kAbort}, reason.message());
  }
  std::string name_of(int rank) const {
    return concat("rank ", rank, " (MPI process ", processes_[static_cast<std::size_t>(rank)], ")");
  }
  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }

  const std::shared_ptr<MpiDispatcher> dispatcher_;
  const std::vector<int> processes_;
  const int rank_;
  MpiDispatcher::Address address_;
  std::vector<Peer> peers_;                  // indexed by rank
  std::map<std::uint64_t, MpiWork*> sends_;  // pending sends, keyed by id
  std::uint64_t last_id_ = 0;
  int frames_in_flight_ = 0;
  std::optional<Error> closed_;
  TransportStats stats_;
};

}  // namespace tutti::internal

namespace tutti {
namespace {

using internal::MpiDispatcher;
using internal::MpiEndpoint;

std::vector<int> processes_of(const MpiOptions& options, int num_processes) {
  std::vector<int> processes = options.processes;
  for (int p = 0; options.processes.empty() && p < num_processes; ++p) processes.push_back(p);
  for (std::size_t r = 0; r < processes.size(); ++r) {
    internal::require(processes[r] >= 0 && processes[r] < num_processes, "mpi: for rank ", r,
                      ", expected a process of this MPI job from 0 to ", num_processes - 1,
                      ", got ", processes[r]);
  }
  return processes;
}

int rank_of(const MpiOptions& options, const std::vector<int>& processes, int process) {
  if (options.rank) {
    const int rank = *options.rank, size = static_cast<int>(processes.size());
    if (rank >= 0 && rank < size && processes[static_cast<std::size_t>(rank)] == process) {
      return rank;
    }
    fail(ErrorCode::kInvalidArgument, "mpi: expected a rank from 0 to ", size - 1,
         " that belongs to MPI process ", process, ", got ", rank);
  }
  if (std::ranges::count(processes, process) != 1) {
    fail(ErrorCode::kInvalidArgument, "mpi: expected the calling MPI process, ", process,
         ", to occur once among the ranks' processes, got ", join(processes),
         "; use MpiOptions::rank");
  }
  return static_cast<int>(std::ranges::find(processes, process) - processes.begin());
}

}  // namespace

std::shared_ptr<Transport> mpi_transport(const MpiOptions& options) {
  std::shared_ptr<MpiDispatcher> dispatcher = MpiDispatcher::get();
  dispatcher->runtime().require_usable();
  const std::vector<int> processes = processes_of(options, dispatcher->runtime().size());
  const int rank = rank_of(options, processes, dispatcher->runtime().rank());
  // The hash is equal on all ranks, because all processes of an MPI job run the same build.
  const std::uint64_t group = std::hash<std::string>()(concat(options.name, ":", join(processes)));
  internal::MpiRuntime& runtime = dispatcher->runtime();
  auto endpoint = std::make_shared<MpiEndpoint>(std::move(dispatcher), processes, rank, group);
  endpoint->connect(options.timeout);
  runtime.before_finalize([open = std::weak_ptr(endpoint)] {
    if (const auto still_open = open.lock()) still_open->close();
  });
  // Work objects may outlive the transport, so they share the endpoint. Destroying the transport
  // sends the goodbye.
  Transport* const transport = endpoint.get();
  return {transport, [endpoint](Transport*) { endpoint->close(); }};
}

}  // namespace tutti
