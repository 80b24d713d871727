// One rank of a TCP group as a process of its own, for tcp_processes_test.cc.
// SPDX-License-Identifier: Apache-2.0
//
// tcp_rank FOLDER RANK SIZE PEER TIMEOUT_MS: passes a number around the ring, writes "ready" to
// standard output, then waits for a message of PEER and writes how that ended.
#include <cstdlib>
#include <iostream>

#include "tutti/cluster/file_key_value_store.h"
#include "tutti/cluster/tcp/tcp_transport.h"

namespace {

tutti::TimePoint after_ms(int milliseconds) {
  return tutti::deadline_after(tutti::Clock::system().now(),
                               std::chrono::milliseconds(milliseconds));
}

void run(int argc, char** argv) {
  if (argc != 6) tutti::fail(tutti::ErrorCode::kInvalidArgument, "tcp_rank: expected 5 arguments");
  tutti::FileKeyValueStore store(argv[1]);
  const int rank = std::atoi(argv[2]), size = std::atoi(argv[3]), peer = std::atoi(argv[4]);
  const auto transport = tutti::tcp_transport(rank, size, store);
  int mine = rank, got = -1;
  const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
  const auto recv = transport->recv(previous, 1, {}, std::as_writable_bytes(std::span(&got, 1)));
  const auto send = transport->send(next, 1, {}, std::as_bytes(std::span(&mine, 1)));
  recv->wait(after_ms(20000));
  send->wait(after_ms(20000));
  std::cout << "ready " << got << std::endl;
  transport->recv(peer, 2, {}, std::as_writable_bytes(std::span(&got, 1)))
      ->wait(after_ms(std::atoi(argv[5])));
  std::cout << "received " << got << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc, argv);
  } catch (const tutti::Error& error) {
    std::cout << "error " << static_cast<int>(error.code()) << " " << error.message() << std::endl;
  }
}
