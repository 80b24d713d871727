// Connecting a group: each rank opens connections to the lower ranks and accepts the higher ones.
// SPDX-License-Identifier: Apache-2.0
//
// A rank draws a *nonce*, a number that no other run has, and publishes it with its address. The
// handshake tells each side the nonce of the other, which is compared with the store's. So a value
// that an earlier run left in the store leads to a refusal, upon which the store is read again,
// until the right rank has replaced it.
//
// There is no circle of waiting ranks: rank r connects to 0 .. r-1 before it waits for the others,
// rank 0 waits for them from the start, and every rank accepts whenever it waits for something.
//
// A connection may break, or change a bit, before it is one: a rank without an answer connects
// again, also to one that has given it already. At the end each rank says to each that it has all.
#include "tutti/cluster/net/rendezvous.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <utility>

#include "tutti/cluster/net/acceptor.h"
#include "tutti/cluster/net/durations.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"

namespace tutti::internal {
namespace {

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
  Rendezvous(int rank, int size, KeyValueStore& store, const ConnectOptions& options,
             bool has_memory)
      : rank_(rank),
        size_(size),
        store_(store),
        options_(options),
        has_memory_(has_memory),
        deadline_(deadline_after(Clock::system().now(), options.timeout)),
        hello_(make_rank_hello(rank, size, new_run_nonce(), options.job_id)) {
    own_.nonce = hello_.incarnation;
    own_.machine = this_machine();
    found_.by_rank.resize(static_cast<std::size_t>(size));
  }

  Connections run() {
    start_accepting();
    store_.set(key_of(rank_), to_text(own_));
    for (int peer = 0; peer < rank_; ++peer) connect_to(peer);
    accept_higher();
    confirm_all();
    return std::move(found_);
  }

 private:
  void start_accepting() {
    std::vector<Listener> listeners;
    if (uses_tcp()) listeners.push_back(listen());
    if (has_memory_) {
      listeners.push_back(listen_locally());
      own_.local = listeners.back().endpoint;
    }
    Acceptor::Callbacks callbacks;
    callbacks.decide = [this](const PeerHello& hello, const std::string& refusal) {
      return decide(hello, refusal);
    };
    callbacks.arrived = [this](int rank, FileDescriptor socket, bool is_local) {
      keep(rank, std::move(socket), is_local, announced_.at(rank));
    };
    acceptor_.emplace(who(), hello_, options_.secret, std::move(listeners), std::move(callbacks));
  }

  Listener listen() {
    Listener listener =
        listen_at(options_.listen_at.empty()
                      ? Endpoint{options_.address, 0}
                      : read_endpoint("where to listen", options_.listen_at, parse_listen_address));
    own_.endpoint =
        options_.reached_at.empty()
            ? Endpoint{options_.address, listener.endpoint.port}
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
  std::string who() const { return concat(name_of(options_.way), ": rank ", rank_, " of ", size_); }
  bool uses_tcp() const { return options_.way != ConnectOptions::Way::kSharedMemory; }

  void keep(int peer, FileDescriptor socket, bool is_local, const Announcement& announced) {
    const std::string address =
        is_local ? concat("pid ", peer_process(socket).pid) : announced.endpoint.to_string();
    Connection& place = found_.by_rank[static_cast<std::size_t>(peer)];
    const bool is_first = place.address.empty();
    place = {std::move(socket), address, is_local};
    if (is_first && announced.machine == own_.machine) ++found_.ranks_on_this_machine;
  }

  void connect_to(int peer) {
    for (;;) {
      const auto announced = parse_announcement(announcement_of(peer));
      if (announced && try_to_connect(peer, *announced)) return;
      if (Clock::system().now() >= deadline_) fail_to_reach(peer, announced);
      serve_until(look_again());
    }
  }

  /// Accepts higher ranks meanwhile; returns whether the socket is ready.
  bool serve(pollfd& socket, TimePoint deadline) {
    acceptor_->serve(socket, deadline, options_.interruption.get());
    return socket.revents != 0;
  }

  void serve_until(TimePoint deadline) {
    do {
      pollfd nothing{-1, 0, 0};
      (void)serve(nothing, deadline);
    } while (Clock::system().now() < deadline);
  }

  TimePoint look_again() const {
    return std::min(deadline_, deadline_after(Clock::system().now(), durations::kTryAgain));
  }

  std::string announcement_of(int peer) {
    // Asked again and again, for higher ranks are accepted meanwhile, and waiting may be
    // interrupted.
    for (Duration pause = durations::kStorePause;;
         pause = std::min(2 * pause, durations::kTryAgain)) {
      if (std::optional<std::string> text = store_.get(key_of(peer))) return *std::move(text);
      const TimePoint now = Clock::system().now();
      if (now >= deadline_) {
        fail(ErrorCode::kDeadlineExceeded, who(), ": rank ", peer, " did not come within ",
             seconds(), " s: nobody has set '", key_of(peer), "' in the store");
      }
      serve_until(std::min(deadline_, deadline_after(now, pause)));
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

  /// False: nobody there, or somebody else; the store may know more later.
  bool try_to_connect(int peer, const Announcement& announced) {
    is_hopeless_ = false;
    FileDescriptor socket = connect_locally(announced);
    const bool is_local = socket.is_open();
    if (!is_local && (announced.endpoint.host.empty() || !uses_tcp())) {
      if (announced.machine == own_.machine) return false;
      fail(ErrorCode::kUnavailable, who(), ": rank ", peer,
           " is on another machine, which shared memory does not reach; try TCP");
    }
    OpenedConnection opened{.socket = std::move(socket)};
    if (!is_local) opened = begin_opening(announced.endpoint);
    if (opened.socket.is_open()) {
      if (!wait_for(opened.socket, POLLOUT, peer, announced)) return false;
      finish_opening(opened);
    }
    if (!opened.socket.is_open()) {
      last_refusal_ = opened.reason;
      is_hopeless_ = opened.is_hopeless;
      return false;
    }
    Handshake handshake(Handshake::Side::kClient, with_new_nonce(hello_), options_.secret);
    if (!shake_hands(handshake, opened.socket, peer, announced)) return false;
    keep(peer, std::move(opened.socket), is_local, announced);
    return true;
  }

  /// False: no rank of this job, or one that has left; the store may know more later.
  bool shake_hands(Handshake& handshake, const FileDescriptor& socket, int peer,
                   const Announcement& announced) {
    std::array<std::byte, 1024> bytes{};
    while (send_whole(socket, handshake.bytes_to_send()) &&
           handshake.state() == Handshake::State::kRunning) {
      std::size_t count = 0;
      if (!wait_for(socket, POLLIN, peer, announced)) return false;
      // What lies behind the handshake is the connection's.
      const std::size_t wanted = std::min(bytes.size(), handshake.num_awaited());
      const ByteFlow flow = read_now(socket, std::span(bytes).first(wanted), count);
      (void)handshake.take(std::span<const std::byte>(bytes).first(count));
      if (flow == ByteFlow::kClosed && count == 0) return false;
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

  /// False: the deadline has passed, or the peer announces another address by now.
  bool wait_for(const FileDescriptor& socket, short events, int peer,
                const Announcement& announced) {
    for (;;) {
      pollfd descriptor{socket.get(), events, 0};
      if (serve(descriptor, look_again())) return true;
      if (Clock::system().now() >= deadline_) return false;
      const auto latest = store_.get(key_of(peer));
      if (latest && *latest != to_text(announced)) return false;
    }
  }

  void accept_higher() {
    while (!missing().empty()) {
      if (Clock::system().now() >= deadline_) {
        const std::string& refusal = acceptor_->last_refusal();
        fail(ErrorCode::kDeadlineExceeded, who(), ": rank ", join(missing()),
             " did not come within ", seconds(), " s to ", address_of(own_),
             refusal.empty() ? "" : "; refused was ", refusal);
      }
      pollfd nothing{-1, 0, 0};
      (void)serve(nothing, deadline_);
    }
  }

  /// No rank goes on before all have all their connections: one that gave up in the last moment, or
  /// whose answer was lost, is missed here, and not in the first call.
  void confirm_all() {
    struct Confirmation {
      int told = -1;  // the socket to which this rank has said that it has all
      bool is_heard = false;
    };
    std::vector<Confirmation> all(found_.by_rank.size());
    all[static_cast<std::size_t>(rank_)].is_heard = true;
    for (;;) {
      accept_higher();
      for (std::size_t peer = 0; peer < all.size(); ++peer) {
        const FileDescriptor& socket = found_.by_rank[peer].socket;
        if (socket.get() == all[peer].told) continue;
        constexpr std::byte kAllHere{1};
        (void)send_whole(socket, std::span(&kAllHere, 1));  // what is broken shows when it is read
        all[peer] = {socket.get(), false};
      }
      const auto next = std::ranges::find(all, false, &Confirmation::is_heard);
      if (next == all.end()) return;
      next->is_heard = hear_from(static_cast<int>(next - all.begin()));
    }
  }

  /// Whether the rank has said that it has all its connections.
  bool hear_from(int peer) {
    FileDescriptor& socket = found_.by_rank[static_cast<std::size_t>(peer)].socket;
    if (Clock::system().now() >= deadline_) {
      fail(ErrorCode::kDeadlineExceeded, who(), ": rank ", peer, " is not connected to all others ",
           "within ", seconds(), " s");
    }
    pollfd descriptor{socket.get(), POLLIN, 0};
    if (!serve(descriptor, look_again()) || descriptor.fd != socket.get()) return false;
    std::byte said{};
    std::size_t count = 0;
    if (read_now(socket, std::span(&said, 1), count) == ByteFlow::kOpen) return count == 1;
    if (peer < rank_) {
      fail(ErrorCode::kUnavailable, who(), ": rank ", peer, " gave up before all were connected");
    }
    socket = FileDescriptor();  // it may connect again
    return false;
  }

  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (int peer = rank_ + 1; peer < size_; ++peer) {
      if (!found_.by_rank[static_cast<std::size_t>(peer)].socket.is_open()) ranks.push_back(peer);
    }
    return ranks;
  }

  /// See Acceptor::Callbacks. A rank that came before is welcome again: its connection broke before
  /// it had the answer.
  std::string decide(const PeerHello& hello, const std::string& refusal) {
    const int peer = hello.index;
    std::optional<Announcement> announced;
    if (peer > rank_ && peer < size_) {
      if (const auto text = store_.get(key_of(peer))) announced = parse_announcement(*text);
    }
    if (!announced || !is_rank(hello, peer, announced->nonce)) {
      return concat("this is not the rank ", peer, " that the store has");
    }
    // A rank of this very run will not come back as another one.
    if (!refusal.empty()) fail(ErrorCode::kInvalidArgument, who(), ": ", refusal);
    announced_[peer] = *announced;
    return "";
  }

  const int rank_;
  const int size_;
  KeyValueStore& store_;
  const ConnectOptions& options_;
  const bool has_memory_;
  const TimePoint deadline_;
  const PeerHello hello_;  // of this rank, but for the nonce of each connection
  std::optional<Acceptor> acceptor_;
  std::map<int, Announcement> announced_;  // of the higher ranks that were let in
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

Connections connect_all(int rank, int size, KeyValueStore& store, const ConnectOptions& options,
                        bool has_memory) {
  return Rendezvous(rank, size, store, options, has_memory).run();
}

}  // namespace tutti::internal
