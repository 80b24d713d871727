// The hello program of the Distributed TensorFlow guide: a server, and a session on its target.
// SPDX-License-Identifier: Apache-2.0
//
// In one process:    hello_distributed
// In two:            hello_distributed --serve 2222        (ends when its last session has ended)
//                    hello_distributed --target grpc://127.0.0.1:2222
// Two servers:       hello_distributed --host 127.0.0.1:2222 --host 127.0.0.1:2223 --task 0 (1)
// A client of both:  hello_distributed --host 127.0.0.1:2222 --host 127.0.0.1:2223
#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "examples/common/example_options.h"
#include "tutti/parameter_server.h"
#include "tutti/tutti.h"

using namespace tutti;
using namespace tutti::examples;

namespace {

Tensor bytes_of(std::string_view text) {
  return Tensor::from(Shape{std::ssize(text)}, std::vector<std::uint8_t>(text.begin(), text.end()));
}

/// Concatenates two strings and adds two numbers on the first device of the cluster.
void say_hello(const std::string& target, double timeout = 30.0) {
  const auto milliseconds = static_cast<std::int64_t>(timeout * 1000.0);
  const Session session(target, {.connect_timeout = std::chrono::milliseconds(milliseconds)});
  const auto scope = session.scope();
  const DeviceScope task(session.list_devices().front());
  const Tensor hello =
      concat(std::vector{bytes_of("Hello, "), bytes_of("distributed TensorFlow!")}, 0);
  const auto letters = hello.host_span<std::uint8_t>();
  std::printf("%s\n", std::string(letters.begin(), letters.end()).c_str());
  const Tensor sum = session.run([] { return Tensor(1.0f) + 2.0f; });
  std::fprintf(stderr, "1 + 2 on %s: %g\n", task.merged().to_string().c_str(), sum.item());
}

int serve(const std::vector<std::string>& hosts, std::int64_t task) {
  Server server(ClusterSpec({{"local", hosts}}), "local", static_cast<int>(task));
  server.join();
  return 0;
}

/// Prints the devices that each server lists.
int list_devices(const std::vector<std::string>& hosts) {
  // Sessions are kept until the end, because a server exits after its last session.
  std::vector<Session> sessions;
  for (const std::string& host : hosts) sessions.emplace_back(concat("grpc://", host));
  for (const Session& session : sessions) {
    std::printf("%s: %s\n", session.target().c_str(), join(session.list_devices()).c_str());
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::int64_t port = 0, task = -1;
  double timeout = 30.0;
  std::string target;
  std::vector<std::string> hosts;
  Flags flags("Computes a greeting and a sum on a server");
  flags.add("--serve", port, "serves on this port of 127.0.0.1");
  flags.add("--host", hosts, "host:port of a server; repeat the flag for each server");
  flags.add("--task", task,
            "serves as the --host of this index; default: lists the devices of all hosts");
  flags.add("--target", target, "address of a running server: grpc://host:port");
  flags.add("--timeout", timeout, "seconds to wait for the server");
  const int code = flags.parse(argc, argv);
  if (code >= 0) return code;
  return run_example([&] {
    if (port != 0) return serve({concat("127.0.0.1:", port)}, 0);
    if (!hosts.empty() && task >= 0) return serve(hosts, task);
    if (!hosts.empty()) return list_devices(hosts);
    if (!target.empty()) {
      say_hello(target, timeout);
      return 0;
    }
    const auto server = Server::create_local_server();
    say_hello(server->target());
    return 0;
  });
}
