// The control plane among strangers, recordings and damaged connections, with real sockets.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <list>

#include "tests/cluster/control_job.h"
#include "tests/support/hang_watchdog.h"
#include "tutti/cluster/handshake/job_secret.h"
#include "tutti/cluster/tcp/stream.h"
#include "tutti/core/executor.h"

namespace tutti {
namespace control_strangers_test {

using namespace control_job;
using internal::FileDescriptor;

FileDescriptor knock(const ControlServer& server) {
  const auto endpoint =
      internal::parse_endpoint(server.target().substr(server.target().rfind('/') + 1));
  return internal::start_connecting(*endpoint);
}

void say(const FileDescriptor& socket, std::string_view words) {
  std::size_t count = 0;
  (void)internal::write_now(socket, std::as_bytes(std::span(words)), count);
}

bool is_closed(const FileDescriptor& socket) {
  std::array<std::byte, 4096> bytes{};
  std::size_t count = 1;
  while (count > 0) {
    if (internal::read_now(socket, bytes, count) == internal::ByteFlow::kClosed) return true;
  }
  return false;
}

std::size_t num_descriptors() {
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

TEST(ControlStrangers, G15_HundredsOfThemDisturbNobody) {
  const testing::HangWatchdog watchdog("strangers", std::chrono::seconds(100));
  auto options = server_options("tcp");
  options.secret = JobSecret::generate();
  const auto server = ControlServer::start(options);
  const auto member = join(*server, 0, {.secret = options.secret});
  const std::size_t before = num_descriptors();
  std::list<FileDescriptor> crowd;
  const std::vector<std::string> words{"",
                                       "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                                       std::string("\x16\x03\x01\x02\x00\x01", 6),
                                       "SSH-2.0-x\r\n",
                                       std::string(5000, '\xff'),
                                       "\x93tutti"};
  for (int i = 0; i < 400; ++i) {
    crowd.push_back(knock(*server));
    say(crowd.back(), words[static_cast<std::size_t>(i) % words.size()]);
    if (i % 50 == 0) member->set("k", concat(i));  // works on
  }
  EXPECT_EQ(member->get("k"), "350");
  const auto late = join(*server, 1, {.secret = options.secret});
  // Whoever says what is no hello is dropped at once; silent ones and slow ones after 5 s.
  const TimePoint begin = Clock::system().now();
  EXPECT_TRUE(comes_true([&] {
    std::erase_if(crowd, [](const FileDescriptor& socket) { return is_closed(socket); });
    return crowd.empty();
  })) << crowd.size()
      << " still there";
  std::printf("strangers: all of 400 closed after %.1f s\n",
              seconds_between(begin, Clock::system().now()));
  EXPECT_EQ(late->get("k"), "350");
  EXPECT_TRUE(comes_true([&] { return num_descriptors() <= before + 4; })) << num_descriptors();
  for (const Verdict& verdict : member->verdicts()) EXPECT_EQ(verdict.kind, VerdictKind::kJoined);
}

TEST(ControlStrangers, G15_ARecordedSessionIsRefused) {
  const testing::HangWatchdog watchdog("replay", std::chrono::seconds(60));
  auto options = server_options("tcp");
  options.secret = JobSecret::generate();
  const auto server = ControlServer::start(options);
  // A man in the middle that records what a member says.
  const auto listener = internal::listen_at({"127.0.0.1", 0});
  std::vector<std::byte> recording;
  std::atomic<bool> done{false};
  const auto middle = Executor::system().start("middle", [&] {
    FileDescriptor client;
    while (!client.is_open()) client = internal::accept_from(listener.socket);
    const FileDescriptor onwards = knock(*server);
    std::array<std::byte, 4096> bytes{};
    while (!done) {
      std::size_t count = 0, written = 0;
      (void)internal::read_now(client, bytes, count);
      recording.insert(recording.end(), bytes.begin(), bytes.begin() + static_cast<long>(count));
      (void)internal::write_now(onwards, std::span(bytes).first(count), written);
      (void)internal::read_now(onwards, bytes, count);
      (void)internal::write_now(client, std::span(bytes).first(count), written);
      Clock::system().sleep_for(1ms);
    }
  });
  {
    const auto member = connect_control(concat("tcp://127.0.0.1:", listener.endpoint.port),
                                        {"worker", 0, ""}, {.secret = options.secret});
    member->set("k", "recorded");
  }
  done = true;
  middle->join();
  ASSERT_GT(recording.size(), 400u);
  const auto member = join(*server, 1, {.secret = options.secret});
  member->set("k", "fresh");
  const FileDescriptor replay = knock(*server);
  std::size_t written = 0;
  (void)internal::write_now(replay, recording, written);
  EXPECT_EQ(written, recording.size());
  EXPECT_TRUE(comes_true([&] { return is_closed(replay); }));
  EXPECT_EQ(member->get("k"), "fresh");
}

TEST(ControlConnection, G7_AMemberComesBackAfterResetsAndDamage) {
  const testing::HangWatchdog watchdog("resets", std::chrono::seconds(90));
  const auto server = ControlServer::start(server_options("tcp"));
  const auto listener = internal::listen_at({"127.0.0.1", 0});
  std::atomic<bool> done{false};
  std::atomic<int> faults{0};
  // A proxy that cuts every other connection after some hundred bytes, and damages the rest.
  const auto proxy = Executor::system().start("proxy", [&] {
    for (int number = 0; !done;) {
      const FileDescriptor client = internal::accept_from(listener.socket);
      if (!client.is_open()) {
        Clock::system().sleep_for(1ms);
        continue;
      }
      const bool damages = ++number % 2 == 0;
      const FileDescriptor onwards = knock(*server);
      std::array<std::byte, 512> bytes{};
      std::size_t passed = 0, count = 0, written = 0;
      const auto carry = [&](const FileDescriptor& from, const FileDescriptor& to) {
        const auto flow = internal::read_now(from, bytes, count);
        if (&from == &client) passed += count;
        if (count > 0 && passed > 1000) {  // well after the handshake
          ++faults;
          if (!damages) return false;
          bytes[count / 2] ^= std::byte{4};
        }
        (void)internal::write_now(to, std::span(bytes).first(count), written);
        return flow == internal::ByteFlow::kOpen;
      };
      while (!done && carry(client, onwards) && carry(onwards, client)) {
        Clock::system().sleep_for(200us);
      }
    }
  });
  try {
    const auto member = connect_control(concat("tcp://127.0.0.1:", listener.endpoint.port),
                                        {"worker", 0, ""}, {.timeout = 60s});
    const auto other = join(*server, 1);
    for (int i = 0; i < 60; ++i) {
      // Each is done exactly once, whatever happens to the connection.
      EXPECT_TRUE(member->compare_and_set(concat("k/", i), std::nullopt, "mine")) << i;
    }
    for (const Verdict& verdict : other->verdicts()) {
      EXPECT_EQ(verdict.kind, VerdictKind::kJoined) << verdict.message;
    }
  } catch (const Error& error) {
    ADD_FAILURE() << error.what();
  }
  done = true;
  proxy->join();
  EXPECT_GE(faults, 3);  // how many depends on what the system puts into one packet
}

}  // namespace control_strangers_test
}  // namespace tutti
