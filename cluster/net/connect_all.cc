// Connects a group: each rank connects to the lower ranks and accepts the higher ones.
// SPDX-License-Identifier: Apache-2.0
//
// A rank generates its *run*, a unique number, and publishes it together with its address and
// properties. The handshake exchanges runs, which are compared with those in the store. A value
// from an earlier run therefore causes a refusal, and the store is read again until the rank of
// this run has replaced the value. One read of the store fetches all missing announcements, which
// keeps the number of reads low for many ranks. Compatibility is checked after both sides have
// proven that the store's values are theirs.
//
// Ranks never wait for each other in a cycle: one loop takes every step that is currently possible.
// It connects to the highest lower rank without a connection, accepts connections, performs
// handshakes, and sleeps until a socket is ready or the store is to be read again. Starting with
// the highest lower rank keeps all ranks from connecting to the same rank at once.
//
// A connection may break, or a bit may flip, before the handshake is complete, so a rank that
// receives no answer reconnects, even if the other rank has already answered. Finally, each rank
// confirms to every other rank that it has all connections, and passes a descriptor of its memory
// if that memory can be shared. Therefore, a rank that gave up at the last moment, or whose answer
// was lost, is detected here and not in the first call.
//
// Connecting many ranks on few cores takes long, so the timeout restarts with each connection or
// confirmation, and a rank that loses one connection keeps the others.
#include "cluster/net/connect_all.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <list>
#include <optional>
#include <utility>

#include "cluster/net/handshake.h"
#include "cluster/net/socket.h"
#include "core/process_probe.h"
#include "tutti/cluster/net/job_durations.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"
#include "tutti/core/random.h"

namespace tutti::internal {
namespace {

constexpr std::size_t kMostPendingPeers = 256;
constexpr int kAcceptsInARow = 64;
constexpr int kNoRank = -1;
const FileDescriptor kNoDescriptor;

std::string this_machine() {
  const ProcessIdentity& self = this_process();
  return self.boot_id.empty() ? self.host : self.boot_id;
}

TimePoint now() { return Clock::system().now(); }

/// A connection that is not authenticated yet.
struct PendingPeer {
  PendingPeer(Handshake::Side side, FileDescriptor opened, const RankHello& own,
              const JobSecret& secret)
      : socket(std::move(opened)), handshake(side, own, secret) {}

  /// Reads only the bytes that the handshake still needs, because later bytes belong to the
  /// connection. Returns false if the other side closed the connection.
  bool read() {
    std::array<std::byte, kLongestHandshake> bytes{};
    std::size_t count = 0;
    const ByteFlow flow = read_now(socket, std::span(bytes).first(handshake.num_awaited()), count);
    has_spoken = has_spoken || count > 0;
    (void)handshake.take(std::span<const std::byte>(bytes).first(count));
    return flow == ByteFlow::kOpen;
  }

  FileDescriptor socket;
  Handshake handshake;
  bool is_local = false;
  bool is_ready = true;  // true if poll() reported bytes, or before the first read
  bool has_spoken = false;
  std::string address;
  TimePoint end{};
};

class GroupConnector {
 public:
  GroupConnector(int rank, int size, KeyValueStore& store, const ConnectOptions& options,
                 const FileDescriptor& memory)
      : rank_(rank),
        store_(store),
        options_(options),
        memory_(memory),
        hello_{rank, new_run_nonce()},
        peers_(static_cast<std::size_t>(size)),
        texts_(static_cast<std::size_t>(size)),
        refusals_(who()),
        strangers_(who()) {
    own_.run = hello_.run;
    own_.machine = this_machine();
    own_.group_size = size;
    own_.build = make_build(options.job_id, options.secret);
  }

  std::vector<ConnectedPeer> run() {
    note_progress();
    listen();
    store_.set(key_of(rank_), to_text(own_));
    for (;;) {
      if (now() >= call_again_) call_next();
      receive_confirmations();
      if (is_connected() && confirm_all()) return connections();
      if (now() >= deadline_) fail_at_deadline();
      wait();
      advance_call();
      advance_pending_peers();
      accept_all();
    }
  }

 private:
  struct Peer {
    ConnectedPeer connection;
    bool is_ready = true;        // true if bytes may be available
    bool has_confirmed = false;  // this rank has confirmed that it has all its connections
    bool has_told = false;       // the peer has confirmed that it has all its connections
    bool is_open() const { return connection.socket.is_open(); }
    bool is_awaited() const { return is_open() && !has_told; }
  };

  struct WatchedListener {
    Listener listener;
    bool is_ready = true;  // true before the first accept, and if poll() reported a new connection
  };

  /// Returns the pause between two polls, which is longer if many ranks share processors and the
  /// store.
  Duration longest_pause() const { return durations::kTryAgain * (1 + size() / 8); }

  void note_progress() { deadline_ = deadline_after(now(), options_.timeout); }

  std::string key_of(int rank) const { return concat(options_.key_prefix, "/", rank); }
  int size() const { return static_cast<int>(peers_.size()); }
  std::string who() const {
    return concat(name_of(options_.way), ": rank ", rank_, " of ", size());
  }
  double seconds() const { return std::chrono::duration<double>(options_.timeout).count(); }
  bool uses_tcp() const { return options_.way != ConnectOptions::Way::kSharedMemory; }
  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }

  void listen() {
    if (uses_tcp()) {
      const std::string& at = options_.listen_at;
      listeners_.push_back({listen_at(
          at.empty() ? Endpoint{options_.address, 0}
                     : read_endpoint("address to listen at", at, parse_listen_address))});
      const std::string& reached = options_.reached_at;
      own_.endpoint = reached.empty()
                          ? Endpoint{options_.address, listeners_.back().listener.endpoint.port}
                          : read_endpoint("address of this rank", reached, parse_endpoint);
    }
    if (!memory_.is_open()) return;
    listeners_.push_back({listen_locally()});
    own_.local = listeners_.back().listener.endpoint;
  }

  template <class Parse>
  Endpoint read_endpoint(const char* what, const std::string& text, const Parse& parse) const {
    const std::optional<Endpoint> endpoint = parse(text);
    if (endpoint && !endpoint->is_local()) return *endpoint;
    fail(ErrorCode::kInvalidArgument, who(), ": ", what, ": expected host:port, got '", text, "'");
  }

  void keep(int rank, PendingPeer& pending_peer, const Announcement& announced) {
    const std::string address =
        pending_peer.is_local ? pending_peer.address : announced.endpoint.to_string();
    peer(rank) = {{std::move(pending_peer.socket), address, pending_peer.is_local,
                   announced.machine == own_.machine}};
    note_progress();
  }

  int next_to_call() const {
    for (int rank = rank_ - 1; rank >= 0; --rank) {
      if (!peers_[static_cast<std::size_t>(rank)].is_open()) return rank;
    }
    return kNoRank;
  }

  /// Connects to the next lower rank, or continues the current attempt. Called repeatedly, because
  /// this rank must also accept connections, and because an earlier run's announcement may be
  /// replaced. The pause before the next call is longer if many ranks poll the store, or if the
  /// current attempt is likely to succeed.
  void call_next() {
    const int rank = next_to_call();
    if (rank == kNoRank) return;
    // The announcement that a failed attempt used may have been replaced since.
    const bool was_called = called_text_ && texts_[static_cast<std::size_t>(rank)] == called_text_;
    std::optional<std::string> text = text_of(rank, was_called);
    if (!call_ || text != called_text_) {  // otherwise, the current attempt is still running
      call_.reset();
      called_text_ = std::move(text);
      called_ = called_text_ ? parse_announcement(*called_text_) : std::nullopt;
      if (called_) call(rank);
    }
    const bool is_heard = call_ && call_->is_local;  // a live process accepted the connection
    pause_ = is_heard ? Duration(durations::kOneTry)
             : call_  ? longest_pause()
                      : std::min(2 * pause_, longest_pause());
    call_again_ = deadline_after(now(), pause_);
  }

  /// Connects to a rank: locally if the peer is a process of this user on this machine, otherwise
  /// over TCP.
  void call(int rank) {
    OpenedConnection opened;
    const bool is_near = called_->machine == own_.machine;
    if (is_near && called_->local.is_local() && own_.local.is_local()) {
      opened = begin_opening(called_->local);
    }
    const bool is_local = opened.socket.is_open() && peer_process(opened.socket).same_user;
    if (!is_local && (called_->endpoint.host.empty() || !uses_tcp())) {
      if (is_near) return;
      fail(ErrorCode::kUnavailable, who(), ": rank ", rank,
           " is on another machine, which shared memory does not reach; use TCP");
    }
    if (!is_local) opened = begin_opening(called_->endpoint);
    note(opened);
    if (!opened.socket.is_open()) return;
    const std::string address =
        is_local ? concat("pid ", peer_process(opened.socket).pid) : called_->address();
    call_.emplace(Handshake::Side::kClient, std::move(opened.socket), hello_, options_.secret);
    call_->is_local = is_local;
    call_->address = address;
    is_opening_ = true;
  }

  void note(const OpenedConnection& opened) {
    if (!opened.reason.empty()) last_answer_ = opened.reason;
    is_hopeless_ = opened.is_hopeless;
  }

  void advance_call() {
    if (!call_ || !is_call_ready_) return;
    bool is_open = true;
    if (std::exchange(is_opening_, false)) {
      OpenedConnection opened{.socket = std::move(call_->socket)};
      finish_opening(opened);
      note(opened);
      call_->socket = std::move(opened.socket);
      is_open = call_->socket.is_open();
    } else {
      is_open = call_->read();
    }
    is_open = is_open && send_whole(call_->socket, call_->handshake.bytes_to_send());
    const Handshake::State state = call_->handshake.state();
    if (is_open && state == Handshake::State::kRunning) return;
    const int rank = next_to_call();
    if (state != Handshake::State::kDone) {
      handle_refusal(rank);
    } else if (*call_->handshake.peer() != RankHello{rank, called_->run}) {
      last_answer_ = concat("rank ", call_->handshake.peer()->rank, " of another run answered");
    } else {
      take_answer(rank);
    }
    call_.reset();
  }

  bool is_job_of(const Announcement& other) const {
    return other.build.job_id() == own_.build.job_id();
  }

  void take_answer(int rank) {
    require_fit(rank, *called_);
    keep(rank, *call_, *called_);
    call_again_ = TimePoint::min();
    pause_ = durations::kStorePause;
  }

  /// Logs why a rank refused this rank's connection. That rank may belong to another job or may
  /// have exited; a later attempt reads the store again.
  void handle_refusal(int rank) {
    const Handshake& handshake = call_->handshake;
    if (handshake.is_proven() && handshake.peer() == RankHello{rank, called_->run}) {
      require_fit(rank, *called_);
    }
    const std::string misfit = misfit_of(own_, rank_, *called_, rank);
    const bool is_refused = handshake.state() == Handshake::State::kRefused;
    const std::string reason = misfit.empty() && is_refused ? handshake.reason() : misfit;
    if (reason.empty() || last_answer_ == reason) return;
    last_answer_ = reason;
    log_warning(concat(who(), ": rank ", rank, " at ", called_->address(),
                       " refuses this rank: ", reason, "; trying again"));
  }

  /// Throws if an authenticated peer of this job is incompatible, because retrying cannot help.
  void require_fit(int rank, const Announcement& other) const {
    const std::string misfit = misfit_of(own_, rank_, other, rank);
    if (misfit.empty() || !is_job_of(other)) return;
    fail(ErrorCode::kInvalidArgument, who(), ": rank ", rank, " at ", other.address(),
         " is incompatible: ", misfit);
  }

  void accept_all() {
    for (auto& [listener, is_ready] : listeners_) {
      if (!std::exchange(is_ready, false)) continue;
      for (int i = 0; i < kAcceptsInARow; ++i) {
        errno = 0;
        FileDescriptor socket = accept_from(listener.socket);
        if (!socket.is_open()) break;
        admit(std::move(socket), listener.endpoint.is_local());
      }
      if (errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS) continue;
      accept_again_ = deadline_after(now(), durations::kTryAgain);
      if (!pending_peers_.empty()) pending_peers_.pop_front();
    }
  }

  void admit(FileDescriptor socket, bool is_local) {
    const std::string address =
        is_local ? concat("pid ", peer_process(socket).pid) : address_of_peer(socket);
    if (is_local && !peer_process(socket).same_user) {
      strangers_.note(concat(address, " belongs to another user; expected user ", ::geteuid()),
                      now());
      return;
    }
    if (!is_local && !limit_.allows(address, now())) {
      strangers_.note(concat(address, " opens too many connections"), now());
      return;
    }
    if (pending_peers_.size() == kMostPendingPeers) pending_peers_.pop_front();
    PendingPeer& pending_peer = pending_peers_.emplace_back(
        Handshake::Side::kServer, std::move(socket), hello_, options_.secret);
    pending_peer.is_local = is_local;
    pending_peer.address = address;
    // No timeout for a local peer, because its process closes its connections when it exits.
    pending_peer.end =
        is_local ? TimePoint::max() : deadline_after(now(), durations::kUnreachableAfter);
  }

  void advance_pending_peers() {
    std::erase_if(pending_peers_, [&](PendingPeer& pending_peer) {
      if (is_settled(pending_peer)) return true;
      if (now() < pending_peer.end) return false;
      strangers_.note(concat(pending_peer.address, " did not complete the handshake in time"),
                      now());
      return true;
    });
  }

  /// Continues a handshake; returns true if it has ended.
  bool is_settled(PendingPeer& pending_peer) {
    const bool is_open = !std::exchange(pending_peer.is_ready, false) || pending_peer.read();
    Handshake& handshake = pending_peer.handshake;
    std::optional<Announcement> announced;
    std::string misfit;
    if (handshake.is_proven()) {
      if (!pending_peer.is_local) limit_.release(pending_peer.address);
      announced = announcement_of(*handshake.peer());
      if (announced) misfit = misfit_of(own_, rank_, *announced, handshake.peer()->rank);
      handshake.decide(announced && misfit.empty());
    }
    const bool was_sent = send_whole(pending_peer.socket, handshake.bytes_to_send());
    switch (handshake.state()) {
      case Handshake::State::kRefused:
        refuse(pending_peer, misfit.empty() ? handshake.reason() : misfit);
        // An incompatible rank of this run stays incompatible, so retrying cannot help.
        if (announced) require_fit(handshake.peer()->rank, *announced);
        return true;
      case Handshake::State::kStranger:
        strangers_.note(concat(pending_peer.address, " is not a rank of this version of tutti"),
                        now());
        return true;
      case Handshake::State::kDone:
        // Accept even a second connection, because the peer may not have received the first reply.
        if (was_sent) keep(handshake.peer()->rank, pending_peer, *announced);
        return true;
      case Handshake::State::kRunning:
        break;
    }
    if (!is_open && handshake.peer()) {
      refuse(pending_peer, concat("rank ", handshake.peer()->rank,
                                  " disconnected after receiving this rank's proof; ",
                                  "it died, or has another secret: give all processes the same ",
                                  "TUTTI_JOB_SECRET_FILE"));
    } else if (!is_open && pending_peer.has_spoken) {
      strangers_.note(concat(pending_peer.address, " disconnected during the handshake"), now());
    }
    return !is_open;
  }

  void refuse(const PendingPeer& pending_peer, const std::string& reason) {
    last_refusal_ = concat(pending_peer.address, ": ", reason);
    refusals_.note(last_refusal_, now());
  }

  /// Returns the announcement of the rank that sent `hello`, if that rank is higher than this one
  /// and the store has its announcement for the same run; nullopt otherwise.
  std::optional<Announcement> announcement_of(const RankHello& hello) {
    if (hello.rank <= rank_ || hello.rank >= size()) return std::nullopt;
    for (const bool again : {false, true}) {
      const std::optional<std::string>& text = text_of(hello.rank, again);
      auto announced = text ? parse_announcement(*text) : std::nullopt;
      if (announced && announced->run == hello.run) return announced;
    }
    return std::nullopt;
  }

  /// Returns a rank's announcement, which is read from the store on first use and again if `again`
  /// is set.
  const std::optional<std::string>& text_of(int rank, bool again) {
    std::optional<std::string>& wanted = texts_[static_cast<std::size_t>(rank)];
    if (again) wanted.reset();
    if (wanted) return wanted;
    std::vector<std::size_t> ranks;
    std::vector<std::string> keys;
    for (int other = 0; other < size(); ++other) {
      const auto place = static_cast<std::size_t>(other);
      if (other == rank_ || texts_[place]) continue;
      ranks.push_back(place);
      keys.push_back(key_of(other));
    }
    std::vector<std::optional<std::string>> values = store_.get_all(keys);
    for (std::size_t i = 0; i < ranks.size(); ++i) texts_[ranks[i]] = std::move(values[i]);
    return wanted;
  }

  void wait() {
    std::vector<pollfd> descriptors{{call_ ? call_->socket.get() : -1,  // poll() ignores -1
                                     static_cast<short>(is_opening_ ? POLLOUT : POLLIN), 0}};
    std::vector<bool*> ready{&is_call_ready_};
    const auto watch = [&](const FileDescriptor& socket, bool& is_ready) {
      descriptors.push_back({socket.get(), POLLIN, 0});
      ready.push_back(&is_ready);
    };
    for (PendingPeer& pending_peer : pending_peers_)
      watch(pending_peer.socket, pending_peer.is_ready);
    // Polls only one unconfirmed peer and reads from the others after each pause, because poll()
    // takes longer with many sockets, and each of them would wake this rank.
    const auto awaited = std::ranges::find_if(peers_, &Peer::is_awaited);
    if (is_connected() && awaited != peers_.end()) {
      watch(awaited->connection.socket, awaited->is_ready);
    }
    if (now() >= accept_again_) {
      for (auto& [listener, is_ready] : listeners_) watch(listener.socket, is_ready);
    }
    TimePoint end = std::min(deadline_, deadline_after(now(), longest_pause()));
    if (next_to_call() != kNoRank) end = std::min(end, call_again_);
    (void)poll_until(descriptors, end);
    for (std::size_t i = 0; i < ready.size(); ++i) *ready[i] = descriptors[i].revents != 0;
    if (now() >= read_all_at_) {
      for (Peer& peer : peers_) peer.is_ready = true;
      read_all_at_ = deadline_after(now(), longest_pause());
    }
    if (options_.interruption) options_.interruption->check();
  }

  bool is_connected() const { return next_to_call() == kNoRank && missing().empty(); }

  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (int rank = rank_ + 1; rank < size(); ++rank) {
      if (!peers_[static_cast<std::size_t>(rank)].is_open()) ranks.push_back(rank);
    }
    return ranks;
  }

  /// Reads confirmations. After each confirmation, also reads from the next peer, because its
  /// confirmation may have arrived, too.
  void receive_confirmations() {
    bool reads_next = false;
    for (int rank = 0; rank < size(); ++rank) {
      Peer& other = peer(rank);
      if (!other.is_awaited()) continue;
      if (!std::exchange(other.is_ready, false) && !reads_next) continue;
      std::size_t count = 0;
      const ByteFlow flow = read_byte(other.connection.socket, count, other.connection.memory);
      reads_next = other.has_told = count == 1;
      if (other.has_told) note_progress();
      if (flow == ByteFlow::kClosed) lose(rank);
    }
  }

  /// Sends this rank's confirmation to all ranks; returns true if all peers have confirmed.
  bool confirm_all() {
    bool have_all_told = true;
    for (int rank = 0; rank < size(); ++rank) {
      Peer& other = peer(rank);
      if (rank == rank_) continue;
      constexpr std::byte kAllHere{1};
      if (!std::exchange(other.has_confirmed, true)) {
        // Errors are ignored here, because reading detects a broken connection.
        const auto& connection = other.connection;
        (void)send_byte(connection.socket, kAllHere, connection.is_local ? memory_ : kNoDescriptor);
      }
      have_all_told = have_all_told && other.has_told;
    }
    return have_all_told;
  }

  /// Drops a broken connection, so that its two ranks connect again.
  void lose(int rank) {
    peer(rank) = {};
    call_again_ = TimePoint::min();
  }

  std::vector<ConnectedPeer> connections() {
    std::vector<ConnectedPeer> all;
    for (Peer& each : peers_) all.push_back(std::move(each.connection));
    return all;
  }

  [[noreturn]] void fail_at_deadline() const {
    if (const int rank = next_to_call(); rank != kNoRank) fail_to_reach(rank);
    if (const std::vector<int> ranks = missing(); !ranks.empty()) {
      fail(ErrorCode::kDeadlineExceeded, who(), ": rank ", join(ranks), " did not connect to ",
           own_.address(), " within ", seconds(), " s",
           last_refusal_.empty() ? "" : "; refused peer: ", last_refusal_);
    }
    const auto late = std::ranges::find_if(peers_, &Peer::is_awaited);
    fail(ErrorCode::kDeadlineExceeded, who(), ": rank ", late - peers_.begin(),
         " did not connect to all other ranks within ", seconds(), " s");
  }

  [[noreturn]] void fail_to_reach(int rank) const {
    if (!called_text_) {
      fail(ErrorCode::kDeadlineExceeded, who(), ": rank ", rank, " did not connect within ",
           seconds(), " s: no process has set '", key_of(rank), "' in the store");
    }
    const ErrorCode code = is_hopeless_ ? ErrorCode::kNotFound : ErrorCode::kDeadlineExceeded;
    fail(code, who(), ": rank ", rank, " did not answer within ", seconds(), " s at ",
         called_ ? called_->address() : "an unreadable address",
         last_answer_.empty() ? "" : "; last answer: ", last_answer_,
         "; try another address (TUTTI_DATA_ADDRESS of that rank) or a longer timeout (an address "
         "that an earlier run left in the store causes this error until the rank replaces it)");
  }

  const int rank_;
  KeyValueStore& store_;
  const ConnectOptions& options_;
  const FileDescriptor& memory_;
  TimePoint deadline_;  // end of the timeout, which restarts with each connection
  const RankHello hello_;
  std::vector<Peer> peers_;  // indexed by rank
  Announcement own_;
  std::vector<std::optional<std::string>> texts_;  // announcements in the store, by rank

  std::optional<PendingPeer> call_;         // call to the highest unconnected rank below this one
  bool is_opening_ = false;                 // true while the connection is being opened
  bool is_call_ready_ = false;              // true if poll() reported an event
  std::optional<std::string> called_text_;  // announcement, in the store, of the rank being called
  std::optional<Announcement> called_;      // parsed from called_text_
  Duration pause_ = durations::kStorePause;
  TimePoint call_again_ = TimePoint::min();
  std::string last_answer_;
  bool is_hopeless_ = false;  // true if the last attempt failed locally or the host is unknown

  std::vector<WatchedListener> listeners_;
  std::list<PendingPeer> pending_peers_;
  AddressLimit limit_;
  RefusalLog refusals_, strangers_;
  std::string last_refusal_;  // last refused peer that claimed to be a rank, and why
  TimePoint accept_again_ = TimePoint::min();
  TimePoint read_all_at_ = TimePoint::min();  // time of the next read from all peers
};

}  // namespace

std::vector<ConnectedPeer> connect_all(int rank, int size, KeyValueStore& store,
                                       const ConnectOptions& options,
                                       const FileDescriptor& memory) {
  return GroupConnector(rank, size, store, options, memory).run();
}

}  // namespace tutti::internal
