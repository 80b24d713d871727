// The XLA devices of this process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace tutti {

/// Description of the XLA devices of this process, for reports and for choosing a strategy.
struct XlaDevices {
  std::string platform;  // "cpu", "tpu"; "" if there are no devices
  int count = 0;         // number of devices, xla:0 .. xla:count-1
  std::string plugin;    // path of the plugin
  std::string version;   // version of the plugin's API, e.g. "0.115"
  std::string why_none;  // if there are no devices: the reason and the remedy, in one line
};

/// Returns the devices. The first call opens the plugin and its devices, which takes a tenth of a
/// second, or seconds on TPUs. The plugin and its devices stay open until the process ends.
const XlaDevices& xla_devices();

}  // namespace tutti
