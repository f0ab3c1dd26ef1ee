// Devices and contexts. A context is its device: the handle is the device's number plus one.
#include "device.h"

#include <acl/acl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <string>

#include "settings.h"

namespace simulator {
namespace {
constexpr aclError kInvalidDevice = 107001;
constexpr aclError kNoContext = 107002;
constexpr int kMostDevices = 64;
thread_local int chosen = -1;
bool first_by_default = false;
std::array<std::atomic<bool>, kMostDevices> active{};
std::array<std::atomic<bool>, kMostDevices> overflow{};
std::atomic<bool> saturates{true};  // torch_npu asks for infinity at start on the chips that have it
}  // namespace

int current_device() { return chosen >= 0 ? chosen : (first_by_default ? 0 : -1); }
int device_or_first() { return current_device() < 0 ? 0 : current_device(); }
}  // namespace simulator

using namespace simulator;

EXPORTED bool simulator_saturates() { return saturates; }
EXPORTED void simulator_raise_overflow() { overflow[device_or_first()] = true; }
EXPORTED bool simulator_overflowed() { return overflow[device_or_first()]; }
EXPORTED void simulator_clear_overflow() { overflow[device_or_first()] = false; }

// "Ascend910B" without a number is a first-generation chip; Ascend910B1 to B4 are the second.
EXPORTED bool simulator_first_generation() {
  const std::string name = soc();
  for (const char* old : {"Ascend910A", "Ascend910B", "Ascend910ProA", "Ascend910ProB", "Ascend910PremiumA"})
    if (name == old) return true;
  return false;
}

EXPORTED aclError aclInit(const char* configuration) {
  if (configuration && std::strstr(configuration, "acl_default.json")) {  // names device 0 as the default one
    first_by_default = true;
    active[0] = true;
  }
  return ACL_SUCCESS;
}
EXPORTED aclError aclFinalize() { return ACL_SUCCESS; }

EXPORTED aclError aclrtGetDeviceCount(uint32_t* count) {
  *count = devices();
  return ACL_SUCCESS;
}
EXPORTED aclError aclrtSetDevice(int32_t device) {
  if (device < 0 || device >= devices() || device >= kMostDevices) return kInvalidDevice;
  chosen = device;
  active[device] = true;
  return ACL_SUCCESS;
}
EXPORTED aclError aclrtResetDevice(int32_t device) {
  if (chosen == device) chosen = -1;
  return ACL_SUCCESS;
}
// torch_npu takes an error here as "no device is set yet", and then sets its first.
EXPORTED aclError aclrtGetDevice(int32_t* device) {
  if (current_device() < 0) return kNoContext;
  *device = current_device();
  return ACL_SUCCESS;
}
EXPORTED aclError aclrtGetCurrentContext(aclrtContext* context) {
  if (current_device() < 0) return kNoContext;
  *context = reinterpret_cast<void*>(static_cast<intptr_t>(current_device() + 1));
  return ACL_SUCCESS;
}
EXPORTED aclError aclrtSetCurrentContext(aclrtContext context) {
  chosen = static_cast<int>(reinterpret_cast<intptr_t>(context)) - 1;
  return ACL_SUCCESS;
}
EXPORTED aclError aclrtGetPrimaryCtxState(int32_t device, uint32_t* flags, int32_t* is_active) {
  if (flags) *flags = 0;
  *is_active = active[device];
  return ACL_SUCCESS;
}
EXPORTED aclError aclrtDeviceCanAccessPeer(int32_t* can, int32_t, int32_t) {
  *can = 1;
  return ACL_SUCCESS;
}
EXPORTED aclError aclrtDeviceEnablePeerAccess(int32_t, uint32_t) { return ACL_SUCCESS; }
EXPORTED aclError aclrtDeviceGetBareTgid(int32_t* process) {
  *process = getpid();
  return ACL_SUCCESS;
}
EXPORTED aclError aclrtSetDeviceSatMode(aclrtFloatOverflowMode mode) {
  saturates = mode == ACL_RT_OVERFLOW_MODE_SATURATION;
  return ACL_SUCCESS;
}
