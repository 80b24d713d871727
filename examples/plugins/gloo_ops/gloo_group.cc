// Implements Gloo's rendezvous using functions that tutti passes to plugins.
// SPDX-License-Identifier: Apache-2.0
#include "gloo_group.h"

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>

#include <cstdlib>

namespace gloo_ops {
namespace {

class GroupStore final : public gloo::rendezvous::Store {
 public:
  GroupStore(const tutti_group_v1& group, std::chrono::milliseconds timeout)
      : group_(group), timeout_(timeout) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    tutti_error_v1 error{};
    check(group_.set(group_.store, name(key).c_str(), data.data(), data.size(), &error), error);
  }

  std::vector<char> get(const std::string& key) override { return read(key, timeout_); }

  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    for (const std::string& key : keys) read(key, timeout);
  }

 private:
  static std::string name(const std::string& key) { return "gloo/" + key; }

  static void check(std::int32_t code, const tutti_error_v1& error) {
    if (code != TUTTI_OK) throw Failure(code, error.message);
  }

  std::vector<char> read(const std::string& key, std::chrono::milliseconds timeout) {
    std::vector<char> value(4096);
    for (;;) {
      tutti_error_v1 error{};
      std::uint64_t size = 0;
      const std::int32_t code = group_.get(group_.store, name(key).c_str(), value.data(),
                                           value.size(), &size, timeout.count(), &error);
      const bool is_cut = code == TUTTI_OUT_OF_RANGE && size > value.size();
      if (!is_cut) check(code, error);
      value.resize(size);
      if (!is_cut) return value;
    }
  }

  const tutti_group_v1& group_;
  const std::chrono::milliseconds timeout_;
};

}  // namespace

std::shared_ptr<gloo::Context> connect(const tutti_group_v1& group, int process, int num_processes,
                                       std::chrono::milliseconds timeout) {
  const char* const address = std::getenv("GLOO_OPS_ADDRESS");
  std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(
      gloo::transport::tcp::attr(address ? address : "127.0.0.1"));
  auto context = std::make_shared<gloo::rendezvous::Context>(process, num_processes);
  context->setTimeout(timeout);
  GroupStore store(group, timeout);
  context->connectFullMesh(store, device);
  return context;
}

}  // namespace gloo_ops
