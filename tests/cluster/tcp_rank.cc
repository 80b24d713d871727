// Program that is one rank of a group; processes_test.cc runs it.
// SPDX-License-Identifier: Apache-2.0
//
// tcp_rank FOLDER RANK SIZE PEER TIMEOUT_MS [WAY [MODE]]: connects through WAY (tcp, shm, auto),
// receives the previous rank's number, writes "ready NUMBER" to standard output, and then acts
// according to MODE:
//   wait     waits for a message from PEER (the default)
//   stream   repeatedly sends 8 MiB to PEER and receives 8 MiB from it
//   reduce N repeatedly all-reduces N numbers in private memory
//   shared N repeatedly all-reduces N numbers in memory that the ranks share
// Finally, it writes the error that ended its calls.
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "cross_device_ops/shared/host_memory.h"
#include "tutti/cluster/connect_ranks.h"
#include "tutti/cluster/key_value_stores.h"
#include "tutti/cross_device_ops/communicator.h"

namespace {

tutti::TimePoint after_ms(int milliseconds) {
  return tutti::deadline_after(tutti::Clock::system().now(),
                               std::chrono::milliseconds(milliseconds));
}

void stream(tutti::Transport& transport, int peer, int timeout_ms) {
  std::vector<std::byte> mine(std::size_t{8} << 20), theirs(mine.size());
  for (;;) {
    const auto recv = transport.recv(peer, 3, {}, theirs);
    const auto send = transport.send(peer, 3, {}, mine);
    recv->wait(after_ms(timeout_ms));
    send->wait(after_ms(timeout_ms));
  }
}

void reduce(const std::shared_ptr<tutti::Transport>& transport, std::size_t count, bool is_shared,
            int timeout_ms) {
  const auto communicator =
      tutti::make_communicator(transport, {.timeout = std::chrono::milliseconds(timeout_ms)});
  std::vector<float> own(is_shared ? 0 : count);
  tutti::BufferRef shared;
  if (is_shared) shared = tutti::allocator_in(transport->host_memory())->allocate(count * 4);
  std::byte* const data = is_shared ? shared->data() : reinterpret_cast<std::byte*>(own.data());
  for (;;) {
    communicator->all_reduce(tutti::ReduceOp::kSum,
                             tutti::Elements(data, count, tutti::DType::kFloat32));
  }
}

void run(int argc, char** argv) {
  if (argc < 6)
    tutti::fail(tutti::ErrorCode::kInvalidArgument, "tcp_rank: expected at least 5 arguments, got ",
                argc - 1);
  tutti::FileKeyValueStore store(argv[1]);
  const int rank = std::atoi(argv[2]), size = std::atoi(argv[3]), peer = std::atoi(argv[4]);
  const int timeout_ms = std::atoi(argv[5]);
  const std::string mode = argc > 7 ? argv[7] : "wait";
  const auto transport =
      tutti::connect_ranks(rank, size, store, {.way = tutti::parse_way(argc > 6 ? argv[6] : "tcp")})
          .transport;
  int mine = rank, got = -1;
  const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
  const auto recv = transport->recv(previous, 1, {}, std::as_writable_bytes(std::span(&got, 1)));
  const auto send = transport->send(next, 1, {}, std::as_bytes(std::span(&mine, 1)));
  recv->wait(after_ms(20000));
  send->wait(after_ms(20000));
  std::cout << "ready " << got << std::endl;
  if (mode == "stream") return stream(*transport, peer, timeout_ms);
  if (mode != "wait") {
    return reduce(transport, static_cast<std::size_t>(std::atol(argv[8])), mode == "shared",
                  timeout_ms);
  }
  transport->recv(peer, 2, {}, std::as_writable_bytes(std::span(&got, 1)))
      ->wait(after_ms(timeout_ms));
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
