// Connecting a group: each rank opens connections to the lower ranks and accepts the higher ones.
// SPDX-License-Identifier: Apache-2.0
//
// A rank draws a *nonce*, a number that no other run has, and publishes it with its address. Who
// connects says its own nonce and the one it read; who accepts compares both with its own and with
// the store. So a value that an earlier run left in the store leads to a refusal ("stale"), upon
// which the store is read again, until the right rank has replaced it.
//
// Nobody waits in a circle: rank r connects to 0 .. r-1 before it answers, and rank 0 answers from
// the start. Handshakes are a matter of the doors, which are open all the time.
//
// A connection may break, or change a bit, before it is one: whoever has no answer connects again,
// also to a rank that has given it already (rendezvous over: session_hub.cc).
#include "tutti/cluster/tcp/rendezvous.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "tutti/cluster/tcp/stream.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"
#include "tutti/tensor/numerics.h"

namespace tutti::internal {
namespace {

constexpr Duration kLookAgain = std::chrono::milliseconds(20);

std::string this_machine() {
  std::string id;
  if (std::ifstream boot("/proc/sys/kernel/random/boot_id"); boot >> id) return id;
  std::array<char, 256> name{};
  (void)::gethostname(name.data(), name.size() - 1);
  id = name.data();
  return id.empty() ? "unknown" : id;
}

class Rendezvous {
 public:
  Rendezvous(int rank, int size, KeyValueStore& store, const RendezvousOptions& options)
      : rank_(rank),
        size_(size),
        store_(store),
        options_(options),
        deadline_(deadline_after(Clock::system().now(), options.timeout)),
        identity_{rank, new_run_nonce(), options.job_id, options.secret, numerics_fingerprint()},
        refusals_(concat(options.who, ": rank ", rank, " of ", size)) {
    own_.nonce = identity_.nonce;
    own_.machine = this_machine();
    found_.nonce = identity_.nonce;
    found_.by_rank.resize(static_cast<std::size_t>(size));
  }

  Connections run() {
    open_door();
    store_.set(key_of(rank_), to_text(own_));
    for (int peer = 0; peer < rank_; ++peer) connect_to(peer);
    accept_higher();
    return std::move(found_);
  }

 private:
  void open_door() {
    std::vector<Listener> listeners;
    if (options_.address) listeners.push_back(listen());
    if (options_.local == RendezvousOptions::Local::kYes) {
      listeners.push_back(listen_locally());
      own_.local = listeners.back().endpoint;
    }
    found_.door = std::make_unique<Door>(who(), identity_, std::move(listeners));
  }

  Listener listen() {
    Listener listener = options_.listen_at.empty()
                            ? listen_on(*options_.address)
                            : tutti::internal::listen_at(read_endpoint(
                                  "where to listen", options_.listen_at, parse_listen_address));
    own_.endpoint =
        options_.reached_at.empty()
            ? Endpoint{*options_.address, listener.endpoint.port}
            : read_endpoint("where others reach this rank", options_.reached_at, parse_endpoint);
    return listener;
  }

  template <class Parse>
  Endpoint read_endpoint(const char* what, const std::string& text, const Parse& parse) const {
    const std::optional<Endpoint> endpoint = parse(text);
    if (endpoint && !endpoint->is_local()) return *endpoint;
    fail(ErrorCode::kInvalidArgument, who(), ": ", what, ": expected host:port, got '", text, "'");
  }

  std::string key_of(int rank) const { return concat(options_.key_prefix, "/", rank); }
  std::string who() const { return concat(options_.who, ": rank ", rank_, " of ", size_); }

  void keep(int peer, FileDescriptor socket, bool is_local, const Announcement& announced) {
    const std::string address =
        is_local ? concat("pid ", peer_process(socket).pid) : announced.endpoint.to_string();
    Connection& place = found_.by_rank[static_cast<std::size_t>(peer)];
    const bool is_first = !place.socket.is_open();
    place = {std::move(socket), address, is_local, announced.nonce, announced.endpoint};
    if (is_first && announced.machine == own_.machine) ++found_.ranks_on_this_machine;
  }

  void connect_to(int peer) {
    for (;;) {
      const auto announced = parse_announcement(announcement_of(peer));
      if (announced && try_to_connect(peer, *announced)) return;
      if (Clock::system().now() >= deadline_) fail_to_reach(peer, announced);
      pollfd nothing{-1, 0, 0};
      (void)poll_unless_interrupted(nothing, look_again(), options_.interruption);
    }
  }

  TimePoint look_again() const {
    return std::min(deadline_, deadline_after(Clock::system().now(), kLookAgain));
  }

  std::string announcement_of(int peer) {
    try {
      return store_.wait(key_of(peer), deadline_);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kDeadlineExceeded) throw;
      fail(ErrorCode::kDeadlineExceeded, who(), ": rank ", peer, " did not come within ", seconds(),
           " s: ", error.message());
    }
  }

  double seconds() const { return std::chrono::duration<double>(options_.timeout).count(); }

  static std::string address_of(const Announcement& announced) {
    const bool has_endpoint = !announced.endpoint.host.empty();
    return (has_endpoint ? announced.endpoint : announced.local).to_string();
  }

  [[noreturn]] void fail_to_reach(int peer, const std::optional<Announcement>& announced) const {
    const ErrorCode code = is_hopeless_ ? ErrorCode::kNotFound : ErrorCode::kDeadlineExceeded;
    fail(code, who(), ": rank ", peer, " did not answer within ", seconds(), " s at ",
         announced ? address_of(*announced) : "no address that can be read",
         last_refusal_.empty() ? "" : "; last answer: ", last_refusal_,
         "; try another address (TUTTI_DATA_ADDRESS of that rank) or a longer timeout (what an "
         "earlier run left in the store looks "
         "like this until the rank has replaced it)");
  }

  bool shares_machine(const Announcement& peer) const {
    return peer.machine == own_.machine && peer.local.is_local() && own_.local.is_local();
  }

  /// A local connection to a process of this user, where that can be had.
  FileDescriptor connect_locally(const Announcement& announced) const {
    if (!shares_machine(announced)) return FileDescriptor();
    FileDescriptor socket = start_connecting(announced.local);
    if (socket.is_open() && !peer_process(socket).same_user) return FileDescriptor();
    return socket;
  }

  FileDescriptor connect_far(const Endpoint& endpoint) {
    try {
      FileDescriptor socket = start_connecting(endpoint);
      if (!socket.is_open()) note(errno);
      return socket;
    } catch (const Error& unknown_name) {
      last_refusal_ = unknown_name.message();
      is_hopeless_ = unknown_name.code() == ErrorCode::kNotFound;
      return FileDescriptor();
    }
  }

  /// False: as try_to_connect().
  bool note(int error) {
    last_refusal_ = std::strerror(error);
    is_hopeless_ = lies_in_this_machine(error);
    return false;
  }

  /// False: nobody there, or somebody else; the store may know more later.
  bool try_to_connect(int peer, const Announcement& announced) {
    is_hopeless_ = false;
    FileDescriptor socket = connect_locally(announced);
    const bool is_local = socket.is_open();
    if (!is_local && (announced.endpoint.host.empty() || !options_.address)) {
      if (announced.machine == own_.machine) return false;
      fail(ErrorCode::kUnavailable, who(), ": rank ", peer,
           " is on another machine, which shared memory does not reach; try TCP");
    }
    if (!is_local) socket = connect_far(announced.endpoint);
    if (!socket.is_open() || !wait_for(socket, POLLOUT, peer, announced)) return false;
    if (const int error = connect_result(socket); error != 0) return note(error);
    if (is_connected_to_itself(socket)) return false;
    Handshake handshake = rank_handshake(Handshake::Side::kClient, identity_);
    if (!shake_hands(handshake, socket, peer, announced)) return false;
    const Resume opening{{rank_, peer, size_, own_.nonce, announced.nonce},
                         0,
                         true,
                         0,
                         static_cast<std::uint16_t>(options_.tcp_connections)};
    const Digest256 key = handshake.session_key(Handshake::Side::kClient);
    if (!send_opening(socket, sealed(encode(opening), key))) return false;
    std::array<std::byte, kSealedWelcomeBytes> answer{};
    for (std::size_t filled = 0; filled < answer.size();) {
      std::size_t count = 0;
      if (!wait_for(socket, POLLIN, peer, announced)) return false;
      const ByteFlow flow = read_now(socket, std::span(answer).subspan(filled), count);
      filled += count;
      if (flow == ByteFlow::kClosed) return false;
    }
    const Digest256 peer_key = handshake.session_key(Handshake::Side::kServer);
    return take_answer(peer, announced, answer, peer_key, socket, is_local);
  }

  /// False: nobody of this job, or who has left; the store may know more later.
  bool shake_hands(Handshake& handshake, const FileDescriptor& socket, int peer,
                   const Announcement& announced) {
    std::array<std::byte, 1024> bytes{};
    while (send_opening(socket, handshake.bytes_to_send()) &&
           handshake.state() == Handshake::State::kRunning) {
      std::size_t count = 0;
      if (!wait_for(socket, POLLIN, peer, announced)) return false;
      const ByteFlow flow = read_now(socket, bytes, count);
      const std::size_t taken = handshake.take(std::span<const std::byte>(bytes).first(count));
      if (taken < count || (flow == ByteFlow::kClosed && count == 0)) return false;
    }
    if (handshake.state() == Handshake::State::kDone) {
      if (is_rank(*handshake.peer(), peer, announced.nonce)) return true;
      last_refusal_ = concat(handshake.peer()->to_string(), " of another run is there");
      return false;
    }
    if (handshake.is_final()) {
      fail(ErrorCode::kInvalidArgument, who(), ": rank ", peer, " at ", address_of(announced),
           " does not fit: ", handshake.reason());
    }
    if (handshake.state() == Handshake::State::kRefused && last_refusal_ != handshake.reason()) {
      last_refusal_ = handshake.reason();
      log_warning(concat(who(), ": rank ", peer, " at ", address_of(announced),
                         " refuses: ", last_refusal_, "; tries again"));
    }
    return false;
  }

  bool take_answer(int peer, const Announcement& announced,
                   const std::array<std::byte, kSealedWelcomeBytes>& answer, const Digest256& key,
                   FileDescriptor& socket, bool is_local) {
    try {
      const Welcome welcome = decode_welcome(unsealed(answer, key));
      if (welcome.verdict == Welcome::Verdict::kYes) {
        keep(peer, std::move(socket), is_local, announced);
        return true;
      }
      last_refusal_ = welcome.reason;
      if (welcome.verdict == Welcome::Verdict::kStale) return false;
    } catch (const Error& stranger) {
      last_refusal_ = stranger.message();
      return false;
    }
    fail(ErrorCode::kInvalidArgument, who(), ": rank ", peer, " at ", address_of(announced),
         " refuses: ", last_refusal_);
  }

  /// False: the deadline has passed, or the peer announces another address by now.
  bool wait_for(const FileDescriptor& socket, short events, int peer,
                const Announcement& announced) {
    for (;;) {
      pollfd descriptor{socket.get(), events, 0};
      if (poll_unless_interrupted(descriptor, look_again(), options_.interruption) > 0) return true;
      if (Clock::system().now() >= deadline_) return false;
      const auto latest = store_.get(key_of(peer));
      if (latest && *latest != to_text(announced)) return false;
    }
  }

  void accept_higher() {
    Door& door = *found_.door;
    while (!missing().empty()) {
      pollfd bell{door.bell().get(), POLLIN, 0};
      if (poll_unless_interrupted(bell, deadline_, options_.interruption) <= 0 &&
          Clock::system().now() >= deadline_) {
        const std::string refusal = door.last_refusal();
        fail(ErrorCode::kDeadlineExceeded, who(), ": rank ", join(missing()),
             " did not come within ", seconds(), " s to ", address_of(own_),
             refusal.empty() ? "" : "; refused was ", refusal);
      }
      while (auto arrival = door.take()) receive(*std::move(arrival));
    }
  }

  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (int peer = rank_ + 1; peer < size_; ++peer) {
      if (!found_.by_rank[static_cast<std::size_t>(peer)].socket.is_open()) ranks.push_back(peer);
    }
    return ranks;
  }

  void receive(Door::Arrival arrival) {
    // Who goes on with a session comes again, until this rank has sessions.
    if (!arrival.opening.is_first) return;
    const Hello& hello = arrival.opening.hello;
    std::optional<Announcement> announced;
    const Welcome welcome = judge(arrival.opening, announced);
    const bool answered = send_opening(arrival.socket, sealed(encode(welcome), arrival.key));
    if (welcome.verdict == Welcome::Verdict::kYes && answered) {
      keep(hello.from, std::move(arrival.socket), arrival.is_local, *announced);
    } else {
      refusals_.note(welcome.reason, Clock::system().now());
    }
    // A rank of this very run: it will not come back with another number.
    if (announced && welcome.verdict == Welcome::Verdict::kNo) {
      fail(ErrorCode::kInvalidArgument, who(), ": ", welcome.reason);
    }
  }

  Welcome judge(const Resume& opening, std::optional<Announcement>& announced) {
    using Verdict = Welcome::Verdict;
    const Hello& hello = opening.hello;
    if (hello.to_nonce != own_.nonce) {
      return {Verdict::kStale, concat("rank ", hello.from, " looks for rank ", hello.to,
                                      " of another run; here is rank ", rank_)};
    }
    if (hello.size != size_) {
      return {Verdict::kNo, concat("rank ", hello.from, " has a group of ", hello.size,
                                   " ranks; expected ", size_)};
    }
    const auto text = store_.get(key_of(hello.from));
    if (text) announced = parse_announcement(*text);
    if (hello.to != rank_ || hello.from <= rank_ || !announced ||
        announced->nonce != hello.from_nonce) {
      return {Verdict::kStale, concat("this is not the rank ", hello.from, " that the store has")};
    }
    if (opening.num_connections != options_.tcp_connections) {
      return {Verdict::kNo,
              concat("rank ", hello.from, " wants ", opening.num_connections,
                     " TCP connections with each peer, rank ", rank_, " wants ",
                     options_.tcp_connections, "; give all ranks the same TUTTI_TCP_CONNECTIONS")};
    }
    return {Verdict::kYes, ""};  // again, if its connection broke before it had the answer
  }

  const int rank_;
  const int size_;
  KeyValueStore& store_;
  const RendezvousOptions& options_;
  const TimePoint deadline_;
  const RankIdentity identity_;
  RefusalLog refusals_;
  Announcement own_;
  Connections found_;
  std::string last_refusal_;
  bool is_hopeless_ = false;  // the last attempt, however often it is repeated
};

}  // namespace

std::string to_text(const Announcement& announcement) {
  const bool has_endpoint = !announcement.endpoint.host.empty();
  return concat(announcement.nonce, " ", announcement.machine, " ",
                has_endpoint ? announcement.endpoint.to_string() : "-",
                announcement.local.is_local() ? " " : "", announcement.local.host);
}

std::optional<Announcement> parse_announcement(std::string_view text) {
  std::istringstream words{std::string(text)};
  Announcement announcement;
  std::string endpoint, local;
  if (!(words >> announcement.nonce >> announcement.machine >> endpoint)) return std::nullopt;
  if (endpoint != "-") {
    const auto parsed = parse_endpoint(endpoint);
    if (!parsed || parsed->is_local()) return std::nullopt;
    announcement.endpoint = *parsed;
  }
  if (words >> local) {
    const auto parsed = parse_endpoint(local);
    if (!parsed || !parsed->is_local()) return std::nullopt;
    announcement.local = *parsed;
  }
  if (announcement.endpoint.host.empty() && !announcement.local.is_local()) return std::nullopt;
  return announcement;
}

Connections connect_all(int rank, int size, KeyValueStore& store,
                        const RendezvousOptions& options) {
  if (size < 1 || rank < 0 || rank >= size) {
    fail(ErrorCode::kInvalidArgument, options.who, ": rank ", rank, " of ", size,
         "; expected a rank from 0 to size - 1");
  }
  return Rendezvous(rank, size, store, options).run();
}

}  // namespace tutti::internal
