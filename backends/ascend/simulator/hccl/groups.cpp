// Making, describing and closing groups of ranks.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>

#include "../cann/device.h"
#include "queue.h"

using namespace simulator;

namespace {
std::atomic<long> buffer_mb{0};
}

// Of the communicator that was made last with a configuration: what a test asks for.
EXPORTED long simulator_buffer_mb() { return buffer_mb; }

// The root's name for a group reaches the other ranks through torch's store.
EXPORTED HcclResult HcclGetRootInfo(HcclRootInfo* root) {
  static std::atomic<int> made{0};
  const long long time = std::chrono::system_clock::now().time_since_epoch().count();
  std::memset(root, 0, sizeof *root);
  std::snprintf(root->internal, COMM_NAME_MAX_LENGTH, "ascend_simulator_%d_%d_%lld", getpid(), made++, time);
  return HCCL_SUCCESS;
}
EXPORTED HcclResult HcclCommInitRootInfo(uint32_t size, const HcclRootInfo* root, uint32_t rank, HcclComm* handle) {
  auto* made = new Communicator(root->internal, size, rank);
  *handle = made;
  try {
    made->exchange("HcclCommInitRootInfo", "", 0, [](uint32_t, const char*, size_t) {});
  } catch (const std::exception& error) {
    return refuse("HcclCommInitRootInfo", error.what());
  }
  return HCCL_SUCCESS;
}
EXPORTED HcclResult HcclCommInitRootInfoConfig(uint32_t size, const HcclRootInfo* root, uint32_t rank,
                                               const HcclCommConfig* config, HcclComm* handle) {
  buffer_mb = config->hcclBufferSize;
  return HcclCommInitRootInfo(size, root, rank, handle);
}
EXPORTED HcclResult HcclCommDestroy(HcclComm handle) {
  of(handle).close();  // the object stays: work that was queued may still name it
  return HCCL_SUCCESS;
}
EXPORTED HcclResult HcclCommResume(HcclComm) { return HCCL_SUCCESS; }

EXPORTED HcclResult HcclGetCommName(HcclComm handle, char* name) {
  std::strncpy(name, of(handle).name.c_str(), COMM_NAME_MAX_LENGTH - 1);
  return HCCL_SUCCESS;
}
EXPORTED HcclResult HcclGetRankSize(HcclComm handle, uint32_t* size) {
  *size = of(handle).size;
  return HCCL_SUCCESS;
}
EXPORTED HcclResult HcclGetRankId(HcclComm handle, uint32_t* rank) {
  *rank = of(handle).rank;
  return HCCL_SUCCESS;
}
// Failures reach the caller where it waits, see Stream::wait.
EXPORTED HcclResult HcclGetCommAsyncError(HcclComm, HcclResult* error) {
  *error = HCCL_SUCCESS;
  return HCCL_SUCCESS;
}
EXPORTED const char* HcclGetErrorString(HcclResult) { return "simulated HCCL"; }
EXPORTED uint32_t HcclGetCommConfigCapability() { return 0; }
EXPORTED HcclResult HcclSetConfig(HcclConfig, HcclConfigValue) { return HCCL_SUCCESS; }
EXPORTED HcclResult HcclGetConfig(HcclConfig, HcclConfigValue* value) {
  value->value = 0;
  return HCCL_SUCCESS;
}
