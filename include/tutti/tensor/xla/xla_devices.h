// The XLA devices of this process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace tutti {

/// XLA devices of this process, for reports and for the choice of a strategy.
struct XlaDevices {
  std::string platform;  // "cpu", "tpu"; empty: none
  int count = 0;         // xla:0 .. xla:count-1
  std::string plugin;    // path of the plugin
  std::string version;   // of the plugin's API, "0.115"
  std::string why_none;  // cause and remedy in one line if there are none
};

/// Opens the plugin and its devices at the first call, which takes a tenth of a second or, on TPUs,
/// seconds. They stay open as long as the process lives.
const XlaDevices& xla_devices();

}  // namespace tutti
