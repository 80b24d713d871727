// Opens the PJRT plugin, and keeps this process's client or the reason why there is none.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/xla/xla_devices.h"

#include <filesystem>

#include "tensor/xla/pjrt_client.h"

namespace tutti {
namespace internal {
namespace {

struct OpenedXla {
  std::unique_ptr<PjrtClient> client;
  XlaDevices description;
};

std::string why_no_plugin(std::size_t num_candidates) {
  return concat("no PJRT plugin at ", num_candidates,
                " known paths; run pip install --no-deps lammps-jax-pjrt-cpu==0.11.2 (XLA on the "
                "CPU), or libtpu (TPUs), or set TUTTI_PJRT_PLUGIN to a plugin's path");
}

void open_first(OpenedXla& opened) {
  const std::vector<std::string> candidates = pjrt_plugin_candidates();
  const bool is_named = candidates.size() == 1;
  for (const std::string& candidate : candidates) {
    std::error_code error;
    if (!is_named && !std::filesystem::exists(candidate, error)) continue;
    opened.client = std::make_unique<PjrtClient>(candidate);
    opened.description = {opened.client->platform(), opened.client->num_devices(), candidate,
                          opened.client->plugin().version(), ""};
    return;
  }
  opened.description.why_none = why_no_plugin(candidates.size());
}

OpenedXla& opened_xla() {
  // Never destroyed, because a plugin's threads may outlive static objects.
  static OpenedXla& opened = [&]() -> OpenedXla& {
    auto& made = *std::make_unique<OpenedXla>().release();
    try {
      open_first(made);
    } catch (const Error& error) {
      made.description.why_none = error.message();
    }
    return made;
  }();
  return opened;
}

}  // namespace

PjrtClient& PjrtClient::get() {
  OpenedXla& opened = opened_xla();
  if (!opened.client) {
    fail(ErrorCode::kUnavailable, "XLA has no devices here: ", opened.description.why_none);
  }
  return *opened.client;
}

}  // namespace internal

const XlaDevices& xla_devices() { return internal::opened_xla().description; }

}  // namespace tutti
